#pragma once
// Ring: each rank sends to the next rank and receives from the previous rank. Every share travels
// around the ring twice: once for the sum and once to distribute it. It is bandwidth-optimal: each
// rank sends 2(N-1)/N of the data (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
//
// A rank forwards a piece as soon as it has received it, so pieces overlap along the ring.
//
// Shares for only one rank (gather, scatter, all_to_all) are forwarded from neighbour to neighbour
// to that rank (Saad and Schultz 1989, "Data communication in parallel architectures", Parallel
// Computing 11). If only neighbours are linked, each link carries the minimum. On other networks
// this sends more bytes than a direct exchange.

#include <algorithm>

#include "collectives/plan.h"

namespace collectives::ring {

inline constexpr std::string_view paper = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002";
inline constexpr std::string_view paper_of_shares =
    "Saad and Schultz 1989, Parallel Computing 11, 131-150";

constexpr int around(int rank, int ranks) { return ((rank % ranks) + ranks) % ranks; }

// The ring of a piece, seen from this rank. A piece travels to the next rank. If both_ways
// (bidirectional_ring.h), odd pieces travel to the previous rank.
struct Way {
  int ranks, rank, pieces, piece, forward;

  constexpr Way(const Call& call, int pieces, int piece, bool both_ways)
      : ranks(call.ranks),
        rank(call.rank),
        pieces(pieces),
        piece(piece),
        forward(both_ways && piece % 2 != 0 ? -1 : 1) {}
  constexpr int next() const { return around(rank + forward, ranks); }
  constexpr int previous() const { return around(rank - forward, ranks); }
  // Returns the chunk of the share that starts `turns` ranks behind this rank.
  constexpr int chunk(int turns) const {
    return around(rank - forward * turns, ranks) * pieces + piece;
  }
};

// Share k starts at rank k and is complete at rank k - 1, which sends it around again.
inline Plan all_reduce_laps(const Call& call, int pieces, bool both_ways) {
  const int ranks = call.ranks;
  if (ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces, ranks};
  for (int turn = 0; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, pieces, piece, both_ways);
      const int mine = way.chunk(turn);
      if (turn > 0) plan.add(receive_reduce(way.previous(), input(mine), output(mine)));
      plan.add(send(way.next(), turn > 0 ? output(mine) : input(mine)));
    }
  for (int turn = 0; turn < ranks - 1; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, pieces, piece, both_ways);
      const int mine = way.chunk(turn);
      plan.add(receive(way.previous(), output(mine)));
      if (turn < ranks - 2) plan.add(send(way.next(), output(mine)));
    }
  return plan;
}
inline Plan all_reduce(const Call& call) { return all_reduce_laps(call, call.pieces, false); }

// Share k starts at rank k + 1 and is complete at rank k. Sums in transit use two sets of bays in
// turn, so that one can be filled while the other is read.
constexpr int bays_of_lap(const Call& call, int pieces) { return call.ranks > 2 ? 2 * pieces : 0; }
inline Plan reduce_scatter_lap(const Call& call, int pieces, bool both_ways) {
  const int ranks = call.ranks;
  if (ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces, ranks, bays_of_lap(call, pieces)};
  for (int turn = 1; turn <= ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, pieces, piece, both_ways);
      const int mine = way.chunk(turn);
      const Slice sum = turn == ranks ? output(piece) : scratch((turn % 2) * pieces + piece, mine);
      if (turn > 1) plan.add(receive_reduce(way.previous(), input(mine), sum));
      if (turn < ranks) plan.add(send(way.next(), turn > 1 ? sum : input(mine)));
    }
  return plan;
}
inline int reduce_scatter_bays(const Call& call) { return bays_of_lap(call, call.pieces); }
inline Plan reduce_scatter(const Call& call) {
  return reduce_scatter_lap(call, call.pieces, false);
}

inline Plan all_gather_lap(const Call& call, int pieces, bool both_ways) {
  const int rank = call.rank, ranks = call.ranks;
  Plan plan{pieces, ranks};
  for (int piece = 0; piece < pieces && ranks > 1; ++piece)
    plan.add(send(Way(call, pieces, piece, both_ways).next(), input(piece)));
  plan.add(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int turn = 1; turn < ranks; ++turn)
    for (int piece = 0; piece < pieces; ++piece) {
      const Way way(call, pieces, piece, both_ways);
      const int theirs = way.chunk(turn);
      plan.add(receive(way.previous(), output(theirs)));
      if (turn < ranks - 1) plan.add(send(way.next(), output(theirs)));
    }
  return plan;
}
inline Plan all_gather(const Call& call) { return all_gather_lap(call, call.pieces, false); }

// Sends piece after piece along the chain that starts at the root and follows the ring.
inline Plan broadcast(const Call& call) {
  const int ranks = call.ranks, place = around(call.rank - call.root, ranks);
  Plan plan{call.pieces};
  const int next = around(call.rank + 1, ranks), previous = around(call.rank - 1, ranks);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (place > 0) plan.add(receive(previous, output(piece)));
    if (place < ranks - 1) plan.add(send(next, place == 0 ? input(piece) : output(piece)));
  }
  if (place == 0) plan.add(copy(input(0, plan.pieces), output(0, plan.pieces)));
  return plan;
}

// Reduces along the chain that starts at the rank after the root and follows the ring to the root.
inline int reduce_bays(const Call& call) {
  const int place = around(call.root - call.rank, call.ranks);
  return place > 0 && place < call.ranks - 1 ? call.pieces : 0;
}
inline Plan reduce(const Call& call) {
  const int ranks = call.ranks, place = around(call.root - call.rank, ranks);  // 0: the root
  Plan plan{call.pieces, 1, reduce_bays(call)};
  const int next = around(call.rank + 1, ranks), previous = around(call.rank - 1, ranks);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    const bool first = place == ranks - 1, root = place == 0;
    const Slice sum = root ? output(piece) : first ? input(piece) : scratch(piece, piece);
    if (!first) plan.add(receive_reduce(previous, input(piece), sum));
    if (!root) plan.add(send(next, sum));
    if (root && first) plan.add(copy(input(piece), output(piece)));
  }
  return plan;
}

// Bays for shares in transit. Two sets are used in turn: one is filled while the other is read.
constexpr int passing_bays(int shares, int pieces) { return std::min(shares, 2) * pieces; }

// Sends along the chain to the root: a rank's own share first, then the shares of the ranks behind
// it.
inline int gather_bays(const Call& call) {
  const int place = around(call.root - call.rank, call.ranks);
  return place > 0 ? passing_bays(call.ranks - 1 - place, call.pieces) : 0;
}
inline Plan gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  const int place = around(call.root - rank, ranks);  // 0: the root
  Plan plan{pieces, ranks, gather_bays(call)};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  if (place == 0) plan.add(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int piece = 0; piece < pieces && place > 0; ++piece) plan.add(send(next, input(piece)));
  for (int behind = 1; behind < ranks - place; ++behind)
    for (int piece = 0; piece < pieces; ++piece) {
      const int theirs = around(rank - behind, ranks) * pieces + piece;
      const Slice slice =
          place == 0 ? output(theirs) : scratch((behind - 1) % 2 * pieces + piece, theirs);
      plan.add(receive(previous, slice));
      if (place > 0) plan.add(send(next, slice));
    }
  return plan;
}

// Sends along the chain from the root, the farthest rank's share first. A rank's own share comes
// last.
inline int scatter_bays(const Call& call) {
  const int place = around(call.rank - call.root, call.ranks);
  return place > 0 ? passing_bays(call.ranks - 1 - place, call.pieces) : 0;
}
inline Plan scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  const int place = around(rank - call.root, ranks);
  Plan plan{pieces, ranks, scatter_bays(call)};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  for (int ahead = ranks - 1 - place; ahead > 0; --ahead)
    for (int piece = 0; piece < pieces; ++piece) {
      const int theirs = around(rank + ahead, ranks) * pieces + piece;
      const Slice slice =
          place == 0 ? input(theirs) : scratch((ahead - 1) % 2 * pieces + piece, theirs);
      if (place > 0) plan.add(receive(previous, slice));
      plan.add(send(next, slice));
    }
  for (int piece = 0; piece < pieces && place > 0; ++piece)
    plan.add(receive(previous, output(piece)));
  if (place == 0) plan.add(copy(input(rank * pieces, pieces), output(0, pieces)));
  return plan;
}

// Each step sends all remaining shares in one message. The first message has the shares for all
// other ranks, the next rank's first. Each rank takes the first share of a message, which is its
// own, and forwards the rest.
inline int all_to_all_bays(const Call& call) { return 2 * (call.ranks - 1); }
inline Plan all_to_all(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, others = ranks - 1;
  Plan plan{1, ranks, all_to_all_bays(call)};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  plan.add(copy(input(rank), output(rank)));
  if (rank < others) plan.add(copy(input(rank + 1, others - rank), scratch(0, 0, others - rank)));
  if (rank > 0) plan.add(copy(input(0, rank), scratch(others - rank, 0, rank)));
  for (int step = 1; step < ranks; ++step) {
    const int left = ranks - step, taken = step > 1 ? 1 : 0;
    const int received = step % 2 * others;
    plan.add(send(next, scratch(others - received + taken, 0, left)));
    plan.add(receive(previous, scratch(received, 0, left)));
    plan.add(copy(scratch(received, 0), output(around(rank - step, ranks))));
  }
  return plan;
}

// Each of the two laps sends every share except one. The first lap omits share r + 1, which ends
// here. The second lap omits share r + 2, which the next rank has from the first lap.
constexpr std::int64_t all_reduce_sent(int rank, int ranks, std::int64_t count) {
  return ranks == 1 ? 0
                    : 2 * count - part_of(count, ranks, around(rank + 1, ranks)).size() -
                          part_of(count, ranks, around(rank + 2, ranks)).size();
}
// A rank receives the elements that the previous rank sends.
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const std::int64_t messages = 2LL * (call.ranks - 1) * call.pieces;
  return {all_reduce_sent(call.rank, call.ranks, count), messages,
          all_reduce_sent(around(call.rank - 1, call.ranks), call.ranks, count), messages};
}
// N - 1 shares of count elements.
inline Volume one_lap_volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, 1LL * (call.ranks - 1) * call.pieces);
}
// Every edge of the chain carries the whole buffer.
inline Volume chain_volume(int place, const Call& call, std::int64_t count) {
  const bool sends = place<call.ranks - 1, receives = place> 0;
  return {sends ? count : 0, sends ? call.pieces : 0, receives ? count : 0,
          receives ? call.pieces : 0};
}
inline Volume broadcast_volume(const Call& call, std::int64_t count) {
  return chain_volume(around(call.rank - call.root, call.ranks), call, count);
}
inline Volume reduce_volume(const Call& call, std::int64_t count) {
  return chain_volume(call.ranks - 1 - around(call.root - call.rank, call.ranks), call, count);
}
// An edge of the chain carries the shares of all ranks behind it.
inline Volume scatter_volume(const Call& call, std::int64_t count) {
  const std::int64_t place = around(call.rank - call.root, call.ranks);
  const std::int64_t sent = call.ranks - 1 - place, received = place > 0 ? call.ranks - place : 0;
  return {sent * count, sent * call.pieces, received * count, received * call.pieces};
}
inline Volume gather_volume(const Call& call, std::int64_t count) {
  const std::int64_t place = around(call.root - call.rank, call.ranks);
  const std::int64_t sent = place > 0 ? call.ranks - place : 0, received = call.ranks - 1 - place;
  return {sent * count, sent * call.pieces, received * count, received * call.pieces};
}
// N-1 shares, then N-2, … 1.
inline Volume all_to_all_volume(const Call& call, std::int64_t count) {
  return both_ways(1LL * call.ranks * (call.ranks - 1) / 2 * count, call.ranks - 1);
}

static_assert(all_reduce_sent(0, 4, 1000) == 2 * 3 * 1000 / 4);  // 2(N-1)/N n

}  // namespace collectives::ring
