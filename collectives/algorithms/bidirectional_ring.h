#pragma once
// Bidirectional ring: two rings over the same ranks in opposite directions, each with half of the
// data, so that links that carry both ways at once are used both ways (the two-coloured bucket
// algorithm of Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
// interconnects", ICS 2010). As many bytes as the ring.
//
// Even pieces travel towards the next rank, odd ones towards the one before: at least two pieces.

#include <algorithm>

#include "collectives/algorithms/ring.h"
#include "collectives/plan.h"

namespace collectives::bidirectional_ring {

using ring::around;

inline constexpr std::string_view paper = "Jain and Sabharwal 2010, ICS";

constexpr int even_pieces(int pieces) { return std::max(2, pieces - pieces % 2); }

// The ring that a piece travels, seen from this rank.
struct Way {
  int ranks, rank, pieces, piece, forward;

  constexpr Way(const Call& call, int piece)
      : ranks(call.ranks),
        rank(call.rank),
        pieces(even_pieces(call.pieces)),
        piece(piece),
        forward(piece % 2 == 0 ? 1 : -1) {}
  constexpr int next() const { return around(rank + forward, ranks); }
  constexpr int previous() const { return around(rank - forward, ranks); }
  // Of the share that starts so many turns behind this rank.
  constexpr int chunk(int turns) const {
    return around(rank - forward * turns, ranks) * pieces + piece;
  }
};

inline Plan all_reduce(const Call& call) {
  const int ranks = call.ranks, pieces = even_pieces(call.pieces);
  Plan plan{pieces, ranks, 0, {}};
  if (ranks == 1) {
    plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
    return plan;
  }
  for (int turn = 0; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, piece);
      const int mine = way.chunk(turn);
      if (turn > 0) plan.steps.push_back(receive_reduce(way.previous(), input(mine), output(mine)));
      plan.steps.push_back(send(way.next(), turn > 0 ? output(mine) : input(mine)));
    }
  for (int turn = 0; turn < ranks - 1; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, piece);
      const int mine = way.chunk(turn);
      plan.steps.push_back(receive(way.previous(), output(mine)));
      if (turn < ranks - 2) plan.steps.push_back(send(way.next(), output(mine)));
    }
  return plan;
}

// What is on its way lies in two sets of bays in turn.
inline int reduce_scatter_bays(const Call& call) {
  return call.ranks > 2 ? 2 * even_pieces(call.pieces) : 0;
}
inline Plan reduce_scatter(const Call& call) {
  const int ranks = call.ranks, pieces = even_pieces(call.pieces);
  Plan plan{pieces, ranks, reduce_scatter_bays(call), {}};
  if (ranks == 1) {
    plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
    return plan;
  }
  for (int turn = 1; turn <= ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, piece);
      const int mine = way.chunk(turn);
      const Slice sum = turn == ranks ? output(piece) : scratch((turn % 2) * pieces + piece, mine);
      if (turn > 1) plan.steps.push_back(receive_reduce(way.previous(), input(mine), sum));
      if (turn < ranks) plan.steps.push_back(send(way.next(), turn > 1 ? sum : input(mine)));
    }
  return plan;
}

inline Plan all_gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = even_pieces(call.pieces);
  Plan plan{pieces, ranks, 0, {}};
  for (int piece = 0; piece < pieces && ranks > 1; ++piece)
    plan.steps.push_back(send(Way(call, piece).next(), input(piece)));
  plan.steps.push_back(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int turn = 1; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, piece);
      const int theirs = way.chunk(turn);
      plan.steps.push_back(receive(way.previous(), output(theirs)));
      if (turn < ranks - 1) plan.steps.push_back(send(way.next(), output(theirs)));
    }
  return plan;
}

// What of a share travels forwards: its even pieces, of which longer ones come first.
constexpr std::int64_t forward_part(std::int64_t share, int pieces) {
  return share / pieces * (pieces / 2) + (share % pieces + 1) / 2;
}
// Two laps in one direction, without the shares that end at this rank and at the next, as in the
// ring.
constexpr std::int64_t sent_one_way(const Call& call, int rank, int forward, std::int64_t count) {
  if (call.ranks == 1) return 0;
  const auto part = [&](int share) {
    const std::int64_t size = part_of(count, call.ranks, around(share, call.ranks)).size();
    const std::int64_t even = forward_part(size, call.pieces);
    return forward > 0 ? even : size - even;
  };
  std::int64_t all = 0;
  for (int share = 0; share < call.ranks; ++share) all += part(share);
  return 2 * all - part(rank + forward) - part(rank + 2 * forward);
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const std::int64_t messages = 2LL * (call.ranks - 1) * call.pieces;
  const int rank = call.rank;
  return {sent_one_way(call, rank, 1, count) + sent_one_way(call, rank, -1, count), messages,
          sent_one_way(call, rank - 1, 1, count) + sent_one_way(call, rank + 1, -1, count),
          messages};
}

static_assert(sent_one_way({0, 4, 2}, 0, 1, 1000) == 3 * 1000 / 4);  // half of 2(N-1)/N n

}  // namespace collectives::bidirectional_ring
