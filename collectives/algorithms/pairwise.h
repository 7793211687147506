#pragma once
// Pairwise exchange: in each of N-1 steps a rank sends one share to one rank and receives one share
// from one rank. If N is a power of two, both are the same rank. It sends the same number of bytes
// as direct, but in a step each rank receives from only one rank. It suits long messages (Thakur,
// Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521).

#include <bit>

#include "collectives/plan.h"

namespace collectives::pairwise {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

struct Peers {
  int to, from;
};
constexpr Peers peers(int rank, int ranks, int step) {
  if (std::has_single_bit(static_cast<unsigned>(ranks))) return {rank ^ step, rank ^ step};
  return {(rank + step) % ranks, (rank - step + ranks) % ranks};
}

inline Plan all_to_all(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks};
  plan.add(copy(input(rank * pieces, pieces), output(rank * pieces, pieces)));
  for (int step = 1; step < ranks; ++step) {
    const auto [to, from] = peers(rank, ranks, step);
    for (int piece = 0; piece < pieces; ++piece) plan.add(send(to, input(to * pieces + piece)));
    for (int piece = 0; piece < pieces; ++piece)
      plan.add(receive(from, output(from * pieces + piece)));
  }
  return plan;
}

// Each rank adds the other ranks' parts of its share in the order of the steps, so every share has
// another order.
inline Plan reduce_scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks};
  if (ranks == 1) plan.add(copy(input(0, pieces), output(0, pieces)));
  for (int step = 1; step < ranks; ++step) {
    const auto [to, from] = peers(rank, ranks, step);
    for (int piece = 0; piece < pieces; ++piece) plan.add(send(to, input(to * pieces + piece)));
    for (int piece = 0; piece < pieces; ++piece)
      plan.add(receive_reduce(from, step == 1 ? input(rank * pieces + piece) : output(piece),
                              output(piece)));
  }
  return plan;
}

inline Volume volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, 1LL * (call.ranks - 1) * call.pieces);
}

}  // namespace collectives::pairwise
