#include "collectives/cost.h"

#include "collectives/execute.h"

namespace collectives {

machine::Traffic expected_traffic(const Algorithm& algorithm, const Call& call, std::int64_t count,
                                  machine::Dtype dtype) {
  const Volume volume = algorithm.volume(with_pieces(algorithm, call, count, dtype), count);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::uint64_t>(elements * size);
  };
  return {bytes(volume.sent), static_cast<std::uint64_t>(volume.messages_sent),
          bytes(volume.received), static_cast<std::uint64_t>(volume.messages_received)};
}

std::size_t scratch_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype) {
  const Call cut = with_pieces(algorithm, call, count, dtype);
  const int shares = algorithm.plan(cut).shares;
  const std::int64_t share =
      deals_in_shares(algorithm.operation) ? count : part_of(count, shares, 0).size();
  const std::int64_t longest = part_of(share, cut.pieces, 0).size();
  return static_cast<std::size_t>(algorithm.bays(cut) * longest) * size_of(dtype);
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
    case machine::Operation::all_to_all_v:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace collectives
