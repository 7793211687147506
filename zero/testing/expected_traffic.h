#pragma once
// For tests: bytes that a rank sends in a step, by group, operation and dtype.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "zero/cost/cost.h"

namespace zero::testing {

// Elements that a rank sends in a collective over `ranks`. `count` is the number of elements of the
// buffer (all_reduce) or of a share (reduce_scatter, all_gather).
using SentElements =
    std::function<std::int64_t(machine::Operation, machine::Dtype, int ranks, std::int64_t count)>;

inline std::int64_t bandwidth_optimal(machine::Operation operation, machine::Dtype, int ranks,
                                      std::int64_t count) {
  return operation == machine::Operation::all_reduce ? 2 * (ranks - 1) * (count / ranks)
                                                     : (ranks - 1) * count;
}

// Returns the volumes, by their papers, of the algorithms that a step with these options runs over
// shared memory.
inline SentElements as_run(const StepOptions& options) {
  return [=](machine::Operation operation, machine::Dtype dtype, int ranks, std::int64_t count) {
    const std::int64_t whole = operation == machine::Operation::all_reduce ? count : count * ranks;
    const std::string_view algorithm = algorithm_of({{}, operation, dtype, ranks, whole, 1},
                                                    options, machine::Transport::shared_memory);
    // The buffers divide evenly, so every rank sends the same amount as the first rank.
    return collectives::find_algorithm(operation, algorithm).volume({0, ranks}, count).sent;
  };
}

struct TrafficRow {
  std::string group;
  machine::TrafficLabel label;
  std::uint64_t bytes_sent = 0;
  std::string what;  // joined if rows share group and label
  bool operator==(const TrafficRow&) const = default;
};
// Returns expected_calls by group and label, without rows of zero bytes.
inline std::vector<TrafficRow> expected_traffic(int stage, const GradientPlan& plan,
                                                const Layout& layout,
                                                const SentElements& sent = bandwidth_optimal,
                                                const StepOptions& options = {},
                                                const Usage& usage = {}, int dp_rank = 0) {
  std::vector<TrafficRow> rows;
  for (const CollectiveCalls& calls :
       expected_calls(stage, plan, layout, options, usage, {}, dp_rank)) {
    const std::int64_t elements = sent(calls.operation, calls.dtype, calls.ranks, calls.count());
    const auto bytes =
        static_cast<std::uint64_t>(calls.calls * elements) * machine::size_of(calls.dtype);
    const machine::TrafficLabel label{calls.operation, calls.dtype};
    const auto known = std::ranges::find_if(rows, [&](const TrafficRow& row) {
      return row.group == calls.group && row.label == label;
    });
    if (known == rows.end()) {
      rows.push_back({calls.group, label, bytes, calls.what});
      continue;
    }
    known->bytes_sent += bytes;
    if (known->what.find(calls.what) == std::string::npos)
      known->what += fmt::format(" and {}", calls.what);
  }
  std::erase_if(rows, [](const TrafficRow& row) { return row.bytes_sent == 0; });
  return rows;
}

}  // namespace zero::testing
