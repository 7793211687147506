#pragma once
// Ring: each rank sends to the next and receives from the one before; every share travels around
// the ring once to be summed and once to be known. Bandwidth-optimal: 2(N-1)/N of the data are sent
// by each rank (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002).
//
// A rank passes a piece on as soon as it has it, so pieces overlap along the ring.
//
// Shares that are for one rank alone (gather, scatter, all_to_all) are passed from neighbour to
// neighbour until they are there (Saad and Schultz 1989, "Data communication in parallel
// architectures", Parallel Computing 11): where only neighbours are linked, the least that each
// link must carry; elsewhere more bytes than a direct exchange.

#include <algorithm>

#include "collectives/plan.h"

namespace collectives::ring {

inline constexpr std::string_view paper = "Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002";
inline constexpr std::string_view paper_of_shares =
    "Saad and Schultz 1989, Parallel Computing 11, 131-150";

constexpr int around(int rank, int ranks) { return ((rank % ranks) + ranks) % ranks; }

// Share k starts at rank k and is whole at rank k - 1, which sends it around again.
inline Plan all_reduce(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks, 0, {}};
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

// Share k starts at rank k + 1 and is whole at rank k. What is on its way lies in two sets of bays
// in turn, so that one can be filled while the other is read.
inline int reduce_scatter_bays(const Call& call) { return call.ranks > 2 ? 2 * call.pieces : 0; }
inline Plan reduce_scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks, reduce_scatter_bays(call), {}};
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
      const int mine = chunk(rank - turn, piece);
      if (turn == ranks) {
        plan.steps.push_back(receive_reduce(previous, input(mine), output(piece)));
      } else {
        const Slice partial = scratch((turn % 2) * pieces + piece, mine);
        plan.steps.push_back(receive_reduce(previous, input(mine), partial));
        plan.steps.push_back(send(next, partial));
      }
    }
  return plan;
}

inline Plan all_gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks, 0, {}};
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

// The chain that leaves the ring open at the root: from the root on, piece after piece.
inline Plan broadcast(const Call& call) {
  const int ranks = call.ranks, place = around(call.rank - call.root, ranks);
  Plan plan{call.pieces, 1, 0, {}};
  const int next = around(call.rank + 1, ranks), previous = around(call.rank - 1, ranks);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (place > 0) plan.steps.push_back(receive(previous, output(piece)));
    if (place < ranks - 1)
      plan.steps.push_back(send(next, place == 0 ? input(piece) : output(piece)));
  }
  if (place == 0) plan.steps.push_back(copy(input(0, plan.pieces), output(0, plan.pieces)));
  return plan;
}

// The same chain backwards, to the root.
inline int reduce_bays(const Call& call) {
  const int place = around(call.root - call.rank, call.ranks);
  return place > 0 && place < call.ranks - 1 ? call.pieces : 0;
}
inline Plan reduce(const Call& call) {
  const int ranks = call.ranks, place = around(call.root - call.rank, ranks);  // 0: the root
  Plan plan{call.pieces, 1, reduce_bays(call), {}};
  const int next = around(call.rank + 1, ranks), previous = around(call.rank - 1, ranks);
  for (int piece = 0; piece < plan.pieces; ++piece) {
    const bool first = place == ranks - 1, root = place == 0;
    const Slice sum = root ? output(piece) : first ? input(piece) : scratch(piece, piece);
    if (!first) plan.steps.push_back(receive_reduce(previous, input(piece), sum));
    if (!root) plan.steps.push_back(send(next, sum));
    if (root && first) plan.steps.push_back(copy(input(piece), output(piece)));
  }
  return plan;
}

// Bays for shares on their way, in two sets in turn: one is filled while the other is read.
constexpr int passing_bays(int shares, int pieces) { return std::min(shares, 2) * pieces; }

// To the root along the chain: a rank's own share first, then those of the ranks behind it.
inline int gather_bays(const Call& call) {
  const int place = around(call.root - call.rank, call.ranks);
  return place > 0 ? passing_bays(call.ranks - 1 - place, call.pieces) : 0;
}
inline Plan gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  const int place = around(call.root - rank, ranks);  // 0: the root
  Plan plan{pieces, ranks, gather_bays(call), {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  if (place == 0) plan.steps.push_back(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int piece = 0; piece < pieces && place > 0; ++piece)
    plan.steps.push_back(send(next, input(piece)));
  for (int behind = 1; behind < ranks - place; ++behind)
    for (int piece = 0; piece < pieces; ++piece) {
      const int theirs = around(rank - behind, ranks) * pieces + piece;
      const Slice slice =
          place == 0 ? output(theirs) : scratch((behind - 1) % 2 * pieces + piece, theirs);
      plan.steps.push_back(receive(previous, slice));
      if (place > 0) plan.steps.push_back(send(next, slice));
    }
  return plan;
}

// From the root along the chain, the farthest rank's share first: a rank's own comes last.
inline int scatter_bays(const Call& call) {
  const int place = around(call.rank - call.root, call.ranks);
  return place > 0 ? passing_bays(call.ranks - 1 - place, call.pieces) : 0;
}
inline Plan scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  const int place = around(rank - call.root, ranks);
  Plan plan{pieces, ranks, scatter_bays(call), {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  for (int ahead = ranks - 1 - place; ahead > 0; --ahead)
    for (int piece = 0; piece < pieces; ++piece) {
      const int theirs = around(rank + ahead, ranks) * pieces + piece;
      const Slice slice =
          place == 0 ? input(theirs) : scratch((ahead - 1) % 2 * pieces + piece, theirs);
      if (place > 0) plan.steps.push_back(receive(previous, slice));
      plan.steps.push_back(send(next, slice));
    }
  for (int piece = 0; piece < pieces && place > 0; ++piece)
    plan.steps.push_back(receive(previous, output(piece)));
  if (place == 0) plan.steps.push_back(copy(input(rank * pieces, pieces), output(0, pieces)));
  return plan;
}

// What has still to go, in one message a step: first the shares for all other ranks, the next
// rank's first; each rank takes the first share that comes, its own, and passes on the rest.
inline int all_to_all_bays(const Call& call) { return 2 * (call.ranks - 1); }
inline Plan all_to_all(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, others = ranks - 1;
  Plan plan{1, ranks, all_to_all_bays(call), {}};
  const int next = around(rank + 1, ranks), previous = around(rank - 1, ranks);
  plan.steps.push_back(copy(input(rank), output(rank)));
  if (rank < others)
    plan.steps.push_back(copy(input(rank + 1, others - rank), scratch(0, 0, others - rank)));
  if (rank > 0) plan.steps.push_back(copy(input(0, rank), scratch(others - rank, 0, rank)));
  for (int step = 1; step < ranks; ++step) {
    const int left = ranks - step, taken = step > 1 ? 1 : 0;
    const int received = step % 2 * others;
    plan.steps.push_back(send(next, scratch(others - received + taken, 0, left)));
    plan.steps.push_back(receive(previous, scratch(received, 0, left)));
    plan.steps.push_back(copy(scratch(received, 0), output(around(rank - step, ranks))));
  }
  return plan;
}

// Every share but one is sent on in each of the two laps: in the first, not the share r + 1, which
// ends here; in the second, not the share r + 2, which the next rank has from the first lap.
constexpr std::int64_t all_reduce_sent(int rank, int ranks, std::int64_t count) {
  return ranks == 1 ? 0
                    : 2 * count - part_of(count, ranks, around(rank + 1, ranks)).size() -
                          part_of(count, ranks, around(rank + 2, ranks)).size();
}
// A rank receives what the one before it sends.
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const std::int64_t messages = 2LL * (call.ranks - 1) * call.pieces;
  return {all_reduce_sent(call.rank, call.ranks, count), messages,
          all_reduce_sent(around(call.rank - 1, call.ranks), call.ranks, count), messages};
}
// N - 1 shares of count elements.
inline Volume one_lap_volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, 1LL * (call.ranks - 1) * call.pieces);
}
// All of it over every edge of the chain.
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
// Over an edge of the chain, the shares of all ranks behind it.
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
