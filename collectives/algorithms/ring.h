#pragma once
// Ring: each rank sends to the next and receives from the one before; every share travels around
// the ring once to be summed and once to be known. Bandwidth-optimal: 2(N-1)/N of the data are sent
// by each rank (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
//
// A rank passes a piece on as soon as it has it, so pieces overlap along the ring.

#include "collectives/plan.h"

namespace collectives::ring {

inline constexpr std::string_view paper = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002";

constexpr int around(int rank, int ranks) { return ((rank % ranks) + ranks) % ranks; }

// Share k starts at rank k and is whole at rank k - 1, which sends it around again.
inline Plan all_reduce(int rank, int ranks, int pieces) {
  Plan plan{pieces, ranks, ranks, 0, {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  const auto chunk = [&](int share, int piece) { return around(share, ranks) * pieces + piece; };
  if (ranks == 1) {
    plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
    return plan;
  }
  for (int piece = 0; piece < pieces; ++piece)
    plan.steps.push_back(send(next, input(chunk(rank, piece))));
  for (int turn = 1; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const int mine = chunk(rank - turn, piece);
      plan.steps.push_back(receive_reduce(previous, input(mine), output(mine)));
      plan.steps.push_back(send(next, output(mine)));
    }
  for (int turn = 0; turn < ranks - 1; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const int mine = chunk(rank - turn, piece);
      plan.steps.push_back(receive(previous, output(mine)));
      if (turn < ranks - 2) plan.steps.push_back(send(next, output(mine)));
    }
  return plan;
}

// Share k starts at rank k + 1 and is whole at rank k. What is on its way lies in two scratch
// shares in turn, so that one can be filled while the other is read.
inline Plan reduce_scatter(int rank, int ranks, int pieces) {
  Plan plan{pieces, ranks, 1, ranks > 2 ? 2 : 0, {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  const auto chunk = [&](int share, int piece) { return around(share, ranks) * pieces + piece; };
  if (ranks == 1) {
    plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
    return plan;
  }
  for (int piece = 0; piece < pieces; ++piece)
    plan.steps.push_back(send(next, input(chunk(rank - 1, piece))));
  for (int turn = 2; turn <= ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Slice mine = input(chunk(rank - turn, piece));
      if (turn == ranks) {
        plan.steps.push_back(receive_reduce(previous, mine, output(piece)));
      } else {
        const Slice partial = scratch((turn % 2) * pieces + piece);
        plan.steps.push_back(receive_reduce(previous, mine, partial));
        plan.steps.push_back(send(next, partial));
      }
    }
  return plan;
}

inline Plan all_gather(int rank, int ranks, int pieces) {
  Plan plan{pieces, 1, ranks, 0, {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  const auto chunk = [&](int share, int piece) { return around(share, ranks) * pieces + piece; };
  if (ranks > 1)
    for (int piece = 0; piece < pieces; ++piece) plan.steps.push_back(send(next, input(piece)));
  plan.steps.push_back(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int turn = 1; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const int theirs = chunk(rank - turn, piece);
      plan.steps.push_back(receive(previous, output(theirs)));
      if (turn < ranks - 1) plan.steps.push_back(send(next, output(theirs)));
    }
  return plan;
}

// Every share but one is sent on in each of the two laps: in the first, not the share r + 1, which
// ends here; in the second, not the share r + 2, which the next rank has from the first lap.
constexpr std::int64_t all_reduce_elements(int rank, int ranks, std::int64_t count) {
  return 2 * count - part_of(count, ranks, around(rank + 1, ranks)).size() -
         part_of(count, ranks, around(rank + 2, ranks)).size();
}
constexpr std::int64_t all_reduce_messages(int ranks, int pieces) {
  return 2LL * (ranks - 1) * pieces;
}
// N - 1 shares of count elements.
constexpr std::int64_t one_lap_elements(int, int ranks, std::int64_t count) {
  return (ranks - 1) * count;
}
constexpr std::int64_t one_lap_messages(int ranks, int pieces) {
  return 1LL * (ranks - 1) * pieces;
}

static_assert(all_reduce_elements(0, 4, 1000) == 2 * 3 * 1000 / 4);  // 2(N-1)/N n

}  // namespace collectives::ring
