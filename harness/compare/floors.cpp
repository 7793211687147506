#include <algorithm>

#include "harness/compare/compare.h"

namespace harness {
namespace {

constexpr double small_bytes = 65536, large_bytes = 67108864;

enum Kind : std::size_t { step, computation, bandwidth, message, latency, other };
constexpr Floor floors_by_kind[] = {
    {"step", "what a training costs, and long enough to average what disturbs its parts", 0.01},
    {"computation", "clocks move the rate of matrix products by that with the temperature", 0.02},
    {"bandwidth", "64 MiB and more: thousands of pieces average out", 0.02},
    {"message", "64 KiB to 64 MiB: what caches and queues still hold differs by launch", 0.03},
    {"latency", "below 64 KiB: microseconds, which a page or a wake more moves", 0.05},
    {"other", "nothing is known of its size", 0.02},
};

Kind kind_of(const Record& record) {
  if (counter(record, "tokens_per_second") > 0 || counter(record, "steps_per_second") > 0)
    return step;
  double size = std::max(counter(record, "bytes"), counter(record, "memory_bytes"));
  if (size == 0 && counter(record, "flops") > 0) return computation;
  if (size == 0 && counter(record, "messages_expected") > 0)
    size = std::max(1.0, counter(record, "wire_bytes_expected"));
  if (size == 0) return other;
  return size < small_bytes ? latency : size < large_bytes ? message : bandwidth;
}

}  // namespace

std::span<const Floor> floors() { return floors_by_kind; }

const Floor& floor_of(const Record& record) { return floors_by_kind[kind_of(record)]; }

}  // namespace harness
