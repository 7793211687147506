#pragma once
// Scatter, then all-gather: the root scatters shares down a binomial tree and a ring gathers them.
// So a broadcast sends 2(N-1)/N n from each rank, while the root of a tree sends log2 N n. It suits
// long messages (van de Geijn's algorithm; Chan, Heimlich, Purkayastha and van de Geijn 2007,
// doi:10.1002/cpe.1206).
//
// Share k belongs to the rank k places after the root, so the shares that a tree sends are
// contiguous.

#include "collectives/algorithms/binomial_tree.h"
#include "collectives/plan.h"

namespace collectives::scatter_all_gather {

using binomial_tree::Tree;

inline constexpr std::string_view paper = "Chan et al. 2007, doi:10.1002/cpe.1206";

// The root has all shares, so the ring is open there and no rank sends to it.
inline Plan broadcast(const Call& call) {
  const Tree tree(call);
  const int ranks = call.ranks, place = tree.place;
  Plan plan{1, ranks};
  if (place > 0) plan.add(receive(tree.parent(), output(place, tree.size())));
  const Buffer held = place > 0 ? Buffer::output : Buffer::input;
  for (int i = tree.children(); i-- > 0;) {
    const int child = tree.child(i);
    plan.add(send(tree.rank_of(child), {held, child, tree.size(child)}));
  }
  for (int turn = 0; turn < ranks; ++turn) {
    const int share = (place - turn + ranks) % ranks;
    if (turn > 0 && place > 0) plan.add(receive(tree.rank_of(place - 1), output(share)));
    if (turn < ranks - 1 && place < ranks - 1)
      plan.add(send(tree.rank_of(place + 1), {held, share}));
  }
  if (place == 0) plan.add(copy(input(0, ranks), output(0, ranks)));
  return plan;
}

// An edge of the tree carries the shares of the subtree below it. An edge of the ring carries all
// shares except one.
inline Volume volume(const Call& call, std::int64_t count) {
  const Tree tree(call);
  const int ranks = call.ranks, place = tree.place;
  const auto share = [&](int k) { return part_of(count, ranks, (k + ranks) % ranks); };
  const std::int64_t behind = share(place + tree.size() - 1).end - share(place).begin;
  Volume result{behind - share(place).size(), tree.children(), 0, 0};
  if (place < ranks - 1) result += {count - share(place + 1).size(), ranks - 1, 0, 0};
  if (place > 0) result += {0, 0, behind + count - share(place).size(), 1 + ranks - 1};
  return result;
}

}  // namespace collectives::scatter_all_gather
