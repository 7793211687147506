#include "harness/record.h"

namespace harness {

std::string_view name(Ruling ruling) {
  switch (ruling) {
    case Ruling::pass:
      return "pass";
    case Ruling::fail:
      return "fail";
    case Ruling::skipped:
      return "skipped";
  }
  return "?";
}

std::string_view name(Oracle oracle) {
  switch (oracle) {
    case Oracle::numerics:
      return "numerics";
    case Oracle::volume:
      return "volume";
    case Oracle::memory:
      return "memory";
    case Oracle::schedule:
      return "schedule";
    case Oracle::determinism:
      return "determinism";
  }
  return "?";
}

}  // namespace harness
