#include "collectives/cost.h"

#include "collectives/execute.h"

namespace collectives {

machine::Traffic expected_traffic(const Algorithm& algorithm, int rank, int ranks,
                                  std::int64_t count, machine::Dtype dtype) {
  if (ranks == 1) return {};
  const bool reduces_all = algorithm.operation == machine::Operation::all_reduce;
  const std::int64_t share = reduces_all ? part_of(count, ranks, 0).size() : count;
  const std::size_t size = machine::size_of(dtype);
  // An algorithm may refuse to cut (one step): its plan says into how many pieces it really cuts.
  const int pieces =
      algorithm.plan(rank, ranks, pieces_for(static_cast<std::size_t>(share) * size)).pieces;
  // Around a ring a rank receives what the one before it sends; elsewhere exchanges are symmetric.
  const int sender = algorithm.name == "ring" ? (rank + ranks - 1) % ranks : rank;
  const auto messages = static_cast<std::uint64_t>(algorithm.sent_messages(ranks, pieces));
  return {static_cast<std::uint64_t>(algorithm.sent_elements(rank, ranks, count)) * size, messages,
          static_cast<std::uint64_t>(algorithm.sent_elements(sender, ranks, count)) * size,
          messages};
}

std::size_t scratch_bytes(const Algorithm& algorithm, int rank, int ranks, std::int64_t count,
                          machine::Dtype dtype) {
  const bool reduces_all = algorithm.operation == machine::Operation::all_reduce;
  const std::size_t size = machine::size_of(dtype);
  const std::size_t share =
      static_cast<std::size_t>(reduces_all ? part_of(count, ranks, rank).size() : count) * size;
  if (algorithm.name == "direct_one_step") return static_cast<std::size_t>(count) * size;
  if (algorithm.operation == machine::Operation::all_gather) return 0;
  if (algorithm.name == "direct") return rank >= 2 ? share : 0;
  return !reduces_all && ranks > 2 ? 2 * share : 0;
}

double bus_factor(machine::Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case machine::Operation::all_reduce:
      return 2 * (n - 1) / n;
    case machine::Operation::all_gather:
    case machine::Operation::reduce_scatter:
    case machine::Operation::gather:
    case machine::Operation::scatter:
    case machine::Operation::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace collectives
