#include "harness/record/kind_of_case.h"

#include <algorithm>

namespace harness {
namespace {

constexpr double small_bytes = 65536, large_bytes = 67108864;
constexpr std::string_view names[] = {"step",    "computation", "bandwidth",
                                      "message", "latency",     "other"};

}  // namespace

std::string_view name(CaseKind kind) { return names[static_cast<std::size_t>(kind)]; }

CaseKind kind_of_case(const Record& record) {
  using enum CaseKind;
  if (counter(record, "tokens_per_second") > 0 || counter(record, "steps_per_second") > 0)
    return step;
  double size = std::max(counter(record, "bytes"), counter(record, "memory_bytes"));
  if (size == 0 && counter(record, "flops") > 0) return computation;
  if (size == 0 && counter(record, "messages_expected") > 0)
    size = std::max(1.0, counter(record, "wire_bytes_expected"));
  if (size == 0) return other;
  return size < small_bytes ? latency : size < large_bytes ? message : bandwidth;
}

}  // namespace harness
