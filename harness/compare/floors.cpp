#include "harness/compare/compare.h"
#include "harness/record/kind_of_case.h"

namespace harness {
namespace {

// By kind.
constexpr Floor floors_by_kind[] = {
    {"step", "what a training costs, and long enough to average what disturbs its parts", 0.01},
    {"computation", "clocks move the rate of matrix products by that with the temperature", 0.02},
    {"bandwidth", "64 MiB and more: thousands of pieces average out", 0.02},
    {"message", "64 KiB to 64 MiB: what caches and queues still hold differs by launch", 0.03},
    {"latency", "below 64 KiB: microseconds, which a page or a wake more moves", 0.05},
    {"other", "nothing is known of its size", 0.02},
};

}  // namespace

std::span<const Floor> floors() { return floors_by_kind; }

const Floor& floor_of(const Record& record) {
  return floors_by_kind[static_cast<std::size_t>(kind_of_case(record))];
}

}  // namespace harness
