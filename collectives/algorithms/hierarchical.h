#pragma once
// Hierarchical: ranks [k * inner, (k + 1) * inner) share a host. A host first reduces among its own
// ranks, so that each rank has a share of the host's sum. Ranks with the same local index reduce
// that share among hosts. Then each host gathers. The links between hosts carry 2(H-1)/H of the
// data of a host, not of each rank (Cho, Finkler, Kung and Hunter 2019, "BlueConnect", MLSys). A
// broadcast enters each host once (Kielmann et al. 1999, "MagPIe", doi:10.1145/301104.301116).
//
// Both levels use the direct algorithm and add in the order of ranks and of hosts. So a sum's bits
// do not depend on the place of a value in the buffer.

#include <algorithm>

#include "collectives/algorithms/direct.h"
#include "collectives/plan.h"

namespace collectives::hierarchical {

using direct::Peers;
using direct::sum_in_order;

inline constexpr std::string_view paper = "Cho et al. 2019 (BlueConnect), MLSys";
inline constexpr std::string_view paper_of_broadcast =
    "Kielmann et al. 1999 (MagPIe), doi:10.1145/301104.301116";

// The position of a rank: number `local` of `locals` ranks on host number `host` of `hosts`.
struct Position {
  int locals, hosts, local, host;
  explicit constexpr Position(const Call& call)
      : locals(call.inner),
        hosts(call.ranks / call.inner),
        local(call.rank % call.inner),
        host(call.rank / call.inner) {}
  constexpr int rank_of(int on_host, int as_local) const { return on_host * locals + as_local; }
  // Returns the i-th peer to visit, i = 1 ….
  constexpr int local_after(int i) const { return rank_of(host, (local + i) % locals); }
  constexpr int host_after(int i) const { return rank_of((host + i) % hosts, local); }
};

constexpr Peers on_host(const Position& at) {
  return {at.rank_of(at.host, 0), 1, at.locals, at.local};
}
constexpr Peers on_hosts(const Position& at) {
  return {at.rank_of(0, at.local), at.locals, at.hosts, at.host};
}

// Local rank l sums shares [l * hosts, (l + 1) * hosts) on its host. Host h sums number h of these
// shares among hosts.
inline int all_reduce_bays(const Call& call) {
  const Position at(call);
  return std::max(at.local >= 2 ? at.hosts : 0, at.host >= 2 ? 1 : 0);
}
inline Plan all_reduce(const Call& call) {
  const Position at(call);
  const int hosts = at.hosts, locals = at.locals;
  Plan plan{1, call.ranks, all_reduce_bays(call)};
  if (call.ranks == 1) plan.add(copy(input(0), output(0)));
  const auto part_of_local = [&](Buffer buffer, int rank) {
    return Slice{buffer, rank % locals * hosts, hosts};
  };
  if (locals > 1) {
    for (int i = 1; i < locals; ++i)
      plan.add(send(at.local_after(i), part_of_local(Buffer::input, at.local_after(i))));
    sum_in_order(plan, on_host(at), part_of_local(Buffer::input, call.rank),
                 scratch(0, at.local * hosts, hosts), part_of_local(Buffer::output, call.rank));
  }
  const Buffer sums = locals > 1 ? Buffer::output : Buffer::input;
  const auto share = [&](int rank) { return at.local * hosts + rank / locals; };
  if (hosts > 1) {
    const int mine = share(call.rank);
    for (int i = 1; i < hosts; ++i)
      plan.add(send(at.host_after(i), {sums, share(at.host_after(i))}));
    sum_in_order(plan, on_hosts(at), {sums, mine}, scratch(0, mine), output(mine));
    for (int i = 1; i < hosts; ++i) plan.add(send(at.host_after(i), output(mine)));
    for (int i = 1; i < hosts; ++i)
      plan.add(receive(at.host_after(i), output(share(at.host_after(i)))));
  }
  for (int i = 1; i < locals; ++i)
    plan.add(send(at.local_after(i), part_of_local(Buffer::output, call.rank)));
  for (int i = 1; i < locals; ++i)
    plan.add(receive(at.local_after(i), part_of_local(Buffer::output, at.local_after(i))));
  return plan;
}

// Returns the number of bays that hold the sums of each host's shares.
constexpr int kept(const Position& at) { return at.locals > 1 && at.hosts > 1 ? at.hosts : 0; }
// Returns these, and one more for the sum of the ranks before this rank.
inline int reduce_scatter_bays(const Call& call) {
  const Position at(call);
  return kept(at) + (at.local >= 2 || at.host >= 2 ? 1 : 0);
}
// Sums the shares of other hosts first, so that they are sent while the remaining shares are
// summed.
inline Plan reduce_scatter(const Call& call) {
  const Position at(call);
  const int hosts = at.hosts, locals = at.locals, before = kept(at);
  Plan plan{1, call.ranks, reduce_scatter_bays(call)};
  if (call.ranks == 1) plan.add(copy(input(0), output(0)));
  for (int i = 1; i <= hosts; ++i)
    for (int j = 1; j < locals; ++j)
      plan.add(send(at.local_after(j),
                    input(at.rank_of((at.host + i) % hosts, (at.local + j) % locals))));
  for (int i = 1; i <= hosts; ++i) {
    const int owner = at.host_after(i);
    const Slice sum = locals == 1  ? input(owner)
                      : hosts == 1 ? output(0)
                                   : scratch(owner / locals, owner);
    if (locals > 1) sum_in_order(plan, on_host(at), input(owner), scratch(before, owner), sum);
    if (i < hosts)
      plan.add(send(owner, sum));
    else if (hosts > 1)
      sum_in_order(plan, on_hosts(at), sum, scratch(before, owner), output(0));
  }
  return plan;
}

// A rank forwards a share from another host at once.
inline Plan all_gather(const Call& call) {
  const Position at(call);
  Plan plan{1, call.ranks};
  for (int i = 1; i < at.hosts; ++i) plan.add(send(at.host_after(i), input(0)));
  for (int j = 1; j < at.locals; ++j) plan.add(send(at.local_after(j), input(0)));
  plan.add(copy(input(0), output(call.rank)));
  for (int i = 1; i < at.hosts; ++i) {
    const int peer = at.host_after(i);
    plan.add(receive(peer, output(peer)));
    for (int j = 1; j < at.locals; ++j) plan.add(send(at.local_after(j), output(peer)));
  }
  for (int i = 0; i < at.hosts; ++i)
    for (int j = 1; j < at.locals; ++j) {
      const int host = (at.host + i) % at.hosts, peer = at.local_after(j);
      plan.add(receive(peer, output(at.rank_of(host, peer % at.locals))));
    }
  return plan;
}

// On each host, the rank with the root's local index receives from the root and sends to the
// others.
inline Plan broadcast(const Call& call) {
  const Position at(call);
  const bool root = call.rank == call.root, leads = at.local == call.root % call.inner;
  Plan plan{call.pieces};
  for (int piece = 0; piece < plan.pieces; ++piece) {
    const Slice slice = root ? input(piece) : output(piece);
    if (!root)
      plan.add(receive(leads ? call.root : at.rank_of(at.host, call.root % call.inner), slice));
    for (int i = 1; i < at.hosts && root; ++i) plan.add(send(at.host_after(i), slice));
    for (int j = 1; j < at.locals && leads; ++j) plan.add(send(at.local_after(j), slice));
  }
  if (root) plan.add(copy(input(0, plan.pieces), output(0, plan.pieces)));
  return plan;
}

// Both levels send as in direct.h: the parts of all other ranks, then the own part to each of them.
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  const Position at(call);
  const auto shares = [&](int first, int number) {
    return size_of_parts(count, call.ranks, first, number);
  };
  const std::int64_t part = shares(at.local * at.hosts, at.hosts);
  const std::int64_t share = shares(at.local * at.hosts + at.host, 1);
  return both_ways(count - part + (at.locals - 1) * part + part - share + (at.hosts - 1) * share,
                   2LL * (at.locals - 1) + 2LL * (at.hosts - 1));
}
// A rank sends a share per host to each rank of its host, and one share to each other host: N - 1
// shares in total.
inline Volume shares_volume(const Call& call, std::int64_t count) {
  const Position at(call);
  return both_ways((call.ranks - 1) * count, at.hosts * (at.locals - 1) + at.hosts - 1);
}
inline Volume broadcast_volume(const Call& call, std::int64_t count) {
  const Position at(call);
  const bool root = call.rank == call.root, leads = at.local == call.root % call.inner;
  const int sends = (root ? at.hosts - 1 : 0) + (leads ? at.locals - 1 : 0);
  return {sends * count, 1LL * sends * call.pieces, root ? 0 : count, root ? 0 : call.pieces};
}

}  // namespace collectives::hierarchical
