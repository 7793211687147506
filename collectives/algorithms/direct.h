#pragma once
// Direct: every rank talks to every other at once, in two steps: each sums its own share of all
// inputs, then all take the sums (reduce-scatter, then all-gather, as in MPICH's and NCCL's
// algorithms over shared memory; the same 2(N-1)/N of the data as the ring, in 2 steps instead of
// 2(N-1): Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521). Over symmetric memory
// a peer's chunk is read in place.
//
// Sends start with the next rank, so that no rank is everybody's first. Sums are taken in the order
// 0 + 1 + 2 … whoever owns the share: a sum's bits then depend on the values alone, not on how a
// buffer is cut or where in it a value lies.
//
// Each rank first posts where the sums of the others shall land: over symmetric memory the last
// addition of a share then writes it to every rank at once, and nobody reads it again.

#include "collectives/plan.h"

namespace collectives::direct {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

// The i-th peer to visit, i = 1 … ranks - 1.
constexpr int peer_of(int rank, int ranks, int i) { return (rank + i) % ranks; }

// Ranks 0 and 1 start with the sum of the two (a + b is b + a); the others gather what comes before
// their own input apart, since in place the target still holds that input.
inline void reduce_piece(Plan& plan, int rank, int ranks, int piece, Slice target) {
  const Slice own = input(rank * plan.pieces + piece), before = scratch(piece);
  if (rank < 2) {
    plan.steps.push_back(receive_reduce(1 - rank, own, target));
  } else {
    plan.scratch_shares = 1;
    plan.steps.push_back(receive(0, before));
    for (int peer = 1; peer < rank; ++peer)
      plan.steps.push_back(receive_reduce(peer, before, before));
    plan.steps.push_back(copy(own, target));
    plan.steps.push_back(reduce(before, target));
  }
  for (int peer = rank < 2 ? 2 : rank + 1; peer < ranks; ++peer)
    plan.steps.push_back(receive_reduce(peer, target, target));
}

// Two pieces of the input are under way before the first sum is needed; then each sum is answered
// with the next piece. Sums are taken one piece late, while they are still in a cache.
inline Plan all_reduce(int rank, int ranks, int pieces) {
  Plan plan{pieces, ranks, ranks, 0, {}};
  if (ranks == 1) {
    plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
    return plan;
  }
  const auto send_input = [&](int piece) {
    for (int i = 1; i < ranks && piece < pieces; ++i) {
      const int peer = peer_of(rank, ranks, i);
      plan.steps.push_back(send(peer, input(peer * pieces + piece)));
    }
  };
  const auto gather_piece = [&](int piece) {
    for (int i = 1; i < ranks; ++i) {
      const int peer = peer_of(rank, ranks, i);
      plan.steps.push_back(receive(peer, output(peer * pieces + piece)));
    }
  };
  for (int i = 1; i < ranks; ++i)
    for (int piece = 0; piece < pieces; ++piece) {
      const int peer = peer_of(rank, ranks, i);
      plan.steps.push_back(post(peer, output(peer * pieces + piece)));
    }
  send_input(0);
  send_input(1);
  for (int piece = 0; piece < pieces; ++piece) {
    const Slice mine = output(rank * pieces + piece);
    reduce_piece(plan, rank, ranks, piece, mine);
    for (int i = 1; i < ranks; ++i) plan.steps.push_back(send(peer_of(rank, ranks, i), mine));
    send_input(piece + 2);
    if (piece > 0) gather_piece(piece - 1);
  }
  gather_piece(pieces - 1);
  return plan;
}

inline Plan reduce_scatter(int rank, int ranks, int pieces) {
  Plan plan{pieces, ranks, 1, 0, {}};
  if (ranks == 1) plan.steps.push_back(copy(input(0, pieces), output(0, pieces)));
  for (int piece = 0; piece < pieces; ++piece)
    for (int i = 1; i < ranks; ++i) {
      const int peer = peer_of(rank, ranks, i);
      plan.steps.push_back(send(peer, input(peer * pieces + piece)));
    }
  for (int piece = 0; piece < pieces && ranks > 1; ++piece)
    reduce_piece(plan, rank, ranks, piece, output(piece));
  return plan;
}

inline Plan all_gather(int rank, int ranks, int pieces) {
  Plan plan{pieces, 1, ranks, 0, {}};
  for (int piece = 0; piece < pieces; ++piece)
    for (int i = 1; i < ranks; ++i)
      plan.steps.push_back(send(peer_of(rank, ranks, i), input(piece)));
  plan.steps.push_back(copy(input(0, pieces), output(rank * pieces, pieces)));
  for (int piece = 0; piece < pieces; ++piece)
    for (int i = 1; i < ranks; ++i) {
      const int peer = peer_of(rank, ranks, i);
      plan.steps.push_back(receive(peer, output(peer * pieces + piece)));
    }
  return plan;
}

// The others' shares of its input to them, then its own share of the output to each.
constexpr std::int64_t all_reduce_elements(int rank, int ranks, std::int64_t count) {
  const std::int64_t own = part_of(count, ranks, rank).size();
  return count - own + (ranks - 1) * own;
}
constexpr std::int64_t all_reduce_messages(int ranks, int pieces) {
  return 2LL * (ranks - 1) * pieces;
}
constexpr std::int64_t one_step_elements(int, int ranks, std::int64_t count) {
  return (ranks - 1) * count;
}
constexpr std::int64_t one_step_messages(int ranks, int pieces) {
  return 1LL * (ranks - 1) * pieces;
}

static_assert(all_reduce_elements(0, 4, 1000) == 2 * 3 * 1000 / 4);  // 2(N-1)/N n

}  // namespace collectives::direct
