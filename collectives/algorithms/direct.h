#pragma once
// Direct: every rank exchanges data with every other rank, in two steps. First each rank sums its
// own share of all inputs, then all ranks gather the sums (reduce-scatter, then all-gather, as in
// MPICH's and NCCL's algorithms over shared memory). It sends the same 2(N-1)/N of the data as the
// ring, in 2 steps instead of 2(N-1) (Thakur, Rabenseifner and Gropp 2005,
// doi:10.1177/1094342005051521). Over symmetric memory a peer's chunk is read in place.
//
// Sends start with the next rank, so that ranks do not all send to the same rank first. Every share
// is summed in the order 0 + 1 + 2 …. So a sum's bits depend only on the values, not on the split
// of a buffer or the place of a value in it.
//
// Each rank first posts the places for the sums of the other ranks. Over symmetric memory the last
// addition of a share then writes the sum to every rank at once, and no rank reads it again.

#include <algorithm>

#include "collectives/plan.h"
#include "collectives/traffic_matrix.h"

namespace collectives::direct {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

// Returns the i-th peer to visit, i = 1 … ranks - 1.
constexpr int peer_of(int rank, int ranks, int i) { return (rank + i) % ranks; }

inline void send_to_all(Plan& plan, const Call& call, Slice slice) {
  for (int i = 1; i < call.ranks; ++i) plan.add(send(peer_of(call.rank, call.ranks, i), slice));
}
// Sends a piece of each peer's share.
inline void send_shares(Plan& plan, const Call& call, int piece) {
  for (int i = 1; i < call.ranks; ++i) {
    const int peer = peer_of(call.rank, call.ranks, i);
    plan.add(send(peer, input(peer * call.pieces + piece)));
  }
}
inline void receive_shares(Plan& plan, const Call& call, int piece) {
  for (int i = 1; i < call.ranks; ++i) {
    const int peer = peer_of(call.rank, call.ranks, i);
    plan.add(receive(peer, output(peer * call.pieces + piece)));
  }
}

// `count` ranks: first, first + stride, …. This rank is number `index` of them.
struct Peers {
  int first, stride, count, index;
};
// Sets target to the sum of the peers' data and this rank's `own`, in the order of the peers. The
// first two ranks start with the sum of their two values (a + b equals b + a). The others add the
// values before their own in `before`, because in place the target still holds `own`.
inline void sum_in_order(Plan& plan, Peers peers, Slice own, Slice before, Slice target) {
  const auto rank_of = [&](int i) { return peers.first + i * peers.stride; };
  if (peers.index < 2) {
    plan.add(receive_reduce(rank_of(1 - peers.index), own, target));
  } else {
    plan.add(receive(rank_of(0), before));
    for (int i = 1; i < peers.index; ++i) plan.add(receive_reduce(rank_of(i), before, before));
    plan.add(copy(own, target));
    plan.add(reduce(before, target));
  }
  for (int i = std::max(2, peers.index + 1); i < peers.count; ++i)
    plan.add(receive_reduce(rank_of(i), target, target));
}

inline int reduce_bays(const Call& call) { return call.rank >= 2 ? call.pieces : 0; }
inline void reduce_chunk(Plan& plan, const Call& call, int bay, int chunk, Slice target) {
  sum_in_order(plan, {0, 1, call.ranks, call.rank}, input(chunk), scratch(bay, chunk), target);
}

// Two pieces of the input are sent before the first sum is needed. After each sum the next piece is
// sent. Sums are received one piece later, while they are still in a cache.
inline Plan all_reduce(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  if (ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces, ranks, reduce_bays(call)};
  for (int i = 1; i < ranks; ++i)
    for (int piece = 0; piece < pieces; ++piece) {
      const int peer = peer_of(rank, ranks, i);
      plan.add(post(peer, output(peer * pieces + piece)));
    }
  for (int piece = 0; piece < std::min(2, pieces); ++piece) send_shares(plan, call, piece);
  for (int piece = 0; piece < pieces; ++piece) {
    const int mine = rank * pieces + piece;
    reduce_chunk(plan, call, piece, mine, output(mine));
    send_to_all(plan, call, output(mine));
    if (piece + 2 < pieces) send_shares(plan, call, piece + 2);
    if (piece > 0) receive_shares(plan, call, piece - 1);
  }
  receive_shares(plan, call, pieces - 1);
  return plan;
}

inline Plan reduce_scatter(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  if (ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces, ranks, reduce_bays(call)};
  for (int piece = 0; piece < pieces; ++piece) send_shares(plan, call, piece);
  for (int piece = 0; piece < pieces; ++piece)
    reduce_chunk(plan, call, piece, rank * pieces + piece, output(piece));
  return plan;
}

// A piece is copied just before the other ranks read it, so it comes from memory once.
inline Plan all_gather(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks};
  for (int piece = 0; piece < pieces; ++piece) send_to_all(plan, call, input(piece));
  for (int piece = 0; piece < pieces; ++piece) {
    plan.add(copy(input(piece), output(rank * pieces + piece)));
    receive_shares(plan, call, piece);
  }
  return plan;
}

// All ranks read the root's buffer, and post places for the last 1/ranks of it. A root in place has
// no copy of its own to make. It writes to these places while the other ranks read the rest. So all
// cores copy the same share, because one core cannot fill the memory.
inline Plan broadcast(const Call& call) {
  Plan plan{call.pieces};
  const int read = plan.pieces - plan.pieces / call.ranks;
  if (call.rank != call.root)
    for (int piece = read; piece < plan.pieces; ++piece) plan.add(post(call.root, output(piece)));
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (call.rank != call.root)
      plan.add(receive(call.root, output(piece)));
    else if (piece < read || !call.in_place)
      send_to_all(plan, call, input(piece));
    else
      for (int i = 1; i < call.ranks; ++i)
        plan.add(push(peer_of(call.rank, call.ranks, i), input(piece)));
  }
  if (call.rank == call.root) plan.add(copy(input(0, plan.pieces), output(0, plan.pieces)));
  return plan;
}

// The root reads all inputs, in the order of ranks.
inline int rooted_bays(const Call& call) { return call.rank == call.root ? reduce_bays(call) : 0; }
inline Plan reduce(const Call& call) {
  Plan plan{call.pieces, 1, rooted_bays(call)};
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (call.rank != call.root) {
      plan.add(send(call.root, input(piece)));
    } else if (call.ranks == 1) {
      plan.add(copy(input(piece), output(piece)));
    } else {
      reduce_chunk(plan, call, piece, piece, output(piece));
    }
  }
  return plan;
}

inline Plan gather(const Call& call) {
  const int pieces = call.pieces;
  Plan plan{pieces, call.ranks};
  if (call.rank == call.root) plan.add(copy(input(0, pieces), output(call.root * pieces, pieces)));
  for (int i = 1; i < call.ranks; ++i)
    for (int piece = 0; piece < pieces; ++piece) {
      const int peer = peer_of(call.root, call.ranks, i);
      if (call.rank == call.root)
        plan.add(receive(peer, output(peer * pieces + piece)));
      else if (call.rank == peer)
        plan.add(send(call.root, input(piece)));
    }
  return plan;
}

inline Plan scatter(const Call& call) {
  const int pieces = call.pieces;
  Plan plan{pieces, call.ranks};
  for (int i = 1; i < call.ranks; ++i)
    for (int piece = 0; piece < pieces; ++piece) {
      const int peer = peer_of(call.root, call.ranks, i);
      if (call.rank == call.root)
        plan.add(send(peer, input(peer * pieces + piece)));
      else if (call.rank == peer)
        plan.add(receive(call.root, output(piece)));
    }
  if (call.rank == call.root) plan.add(copy(input(call.root * pieces, pieces), output(0, pieces)));
  return plan;
}

inline Plan all_to_all(const Call& call) {
  const int rank = call.rank, ranks = call.ranks, pieces = call.pieces;
  Plan plan{pieces, ranks};
  for (int piece = 0; piece < pieces; ++piece) send_shares(plan, call, piece);
  plan.add(copy(input(rank * pieces, pieces), output(rank * pieces, pieces)));
  for (int piece = 0; piece < pieces; ++piece)
    for (int i = ranks - 1; i > 0; --i) {  // first from the rank that sends here first
      const int peer = peer_of(rank, ranks, i);
      plan.add(receive(peer, output(peer * pieces + piece)));
    }
  return plan;
}

// Sends to the next rank and receives from the previous rank, like nccl-tests' sendrecv.
inline Plan send_receive(const Call& call) {
  const int pieces = call.pieces;
  if (call.ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces};
  for (int piece = 0; piece < pieces; ++piece)
    plan.add(send((call.rank + 1) % call.ranks, input(piece)));
  for (int piece = 0; piece < pieces; ++piece)
    plan.add(receive((call.rank + call.ranks - 1) % call.ranks, output(piece)));
  return plan;
}

// A rank sends the other ranks their shares of its input, then its own share of the output.
constexpr std::int64_t all_reduce_sent(int rank, int ranks, std::int64_t count) {
  const std::int64_t own = part_of(count, ranks, rank).size();
  return count - own + (ranks - 1) * own;
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  return both_ways(all_reduce_sent(call.rank, call.ranks, count),
                   2LL * (call.ranks - 1) * call.pieces);
}
inline Volume one_step_volume(const Call& call, std::int64_t count) {
  return both_ways((call.ranks - 1) * count, 1LL * (call.ranks - 1) * call.pieces);
}
// all_to_all_v sends all parts except the rank's own. An empty part is also sent, as a message of
// zero bytes, so that a plan does not depend on the traffic.
inline Volume all_to_all_v_volume(const Call& call, std::int64_t) {
  const TrafficMatrix& traffic = *call.traffic;
  const std::int64_t own = traffic(call.rank, call.rank);
  const std::int64_t messages = 1LL * (call.ranks - 1) * call.pieces;
  return {traffic.sent_by(call.rank) - own, messages, traffic.received_by(call.rank) - own,
          messages};
}
inline Volume from_root_volume(const Call& call, std::int64_t count) {
  if (call.rank != call.root) return {0, 0, count, call.pieces};
  return {(call.ranks - 1) * count, 1LL * (call.ranks - 1) * call.pieces, 0, 0};
}
inline Volume to_root_volume(const Call& call, std::int64_t count) {
  return from_root_volume(call, count).reversed();
}
inline Volume send_receive_volume(const Call& call, std::int64_t count) {
  return call.ranks == 1 ? Volume{} : both_ways(count, call.pieces);
}

static_assert(all_reduce_sent(0, 4, 1000) == 2 * 3 * 1000 / 4);  // 2(N-1)/N n

}  // namespace collectives::direct
