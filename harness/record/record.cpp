#include "harness/record/record.h"

#include <cmath>

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

std::string_view name(Reference reference) {
  return reference == Reference::shared ? "shared" : "independent";
}

std::string axis(const Record& record, std::string_view name) {
  for (const auto& [axis, value] : record.axes)
    if (axis == name) return value;
  return {};
}

double counter(const Record& record, const std::string& key, double otherwise) {
  const auto found = record.counters.find(key);
  const bool there = found != record.counters.end() && std::isfinite(found->second);
  return there ? found->second : otherwise;
}

}  // namespace harness
