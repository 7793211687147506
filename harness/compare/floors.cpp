#include "harness/compare/compare.h"
#include "harness/record/kind_of_case.h"

namespace harness {
namespace {

// By kind.
constexpr Floor floors_by_kind[] = {
    {"step", "long enough to average the disturbances of its parts", 0.01},
    {"computation", "the rate of matrix products varies with clock and temperature", 0.02},
    {"bandwidth", "64 MiB and more: thousands of pieces average out", 0.02},
    {"message", "64 KiB to 64 MiB: the contents of caches and queues differ between launches",
     0.03},
    {"latency", "below 64 KiB: one page fault or wake-up is a relevant part of microseconds", 0.05},
    {"other", "unknown size", 0.02},
};

}  // namespace

std::span<const Floor> floors() { return floors_by_kind; }

const Floor& floor_of(const Record& record) {
  return floors_by_kind[static_cast<std::size_t>(kind_of_case(record))];
}

}  // namespace harness
