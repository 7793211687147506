#pragma once
// Binomial tree: the root's data reaches 1, 2, 4, … ranks in log2 N rounds. The opposite direction
// gathers or sums. It suits small messages, and long messages if their pieces overlap along the
// tree (Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521).
//
// Places number the ranks, starting at the root. The parent of a place is the place without its
// lowest set bit. So the subtree of a place has consecutive places, and their shares are
// contiguous.

#include <algorithm>
#include <bit>

#include "collectives/plan.h"

namespace collectives::binomial_tree {

inline constexpr std::string_view paper =
    "Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521";

struct Tree {
  int ranks, root, place;

  constexpr Tree(const Call& call, int root)
      : ranks(call.ranks), root(root), place((call.rank - root + ranks) % ranks) {}
  explicit constexpr Tree(const Call& call) : Tree(call, call.root) {}

  constexpr int rank_of(int other) const { return (root + other) % ranks; }
  constexpr int parent() const { return rank_of(place & (place - 1)); }
  // Returns the number of places in the subtree of a place, including itself.
  constexpr int size(int other) const {
    return other == 0 ? ranks : std::min(other & -other, ranks - other);
  }
  constexpr int size() const { return size(place); }
  // The children are place + 1, place + 2, place + 4, …
  constexpr int children() const { return std::bit_width(static_cast<unsigned>(size() - 1)); }
  constexpr int child(int i) const { return place + (1 << i); }
};

// Sends first to the child with the largest subtree.
inline void send_down(Plan& plan, const Tree& tree, Slice slice) {
  for (int i = tree.children(); i-- > 0;) plan.add(send(tree.rank_of(tree.child(i)), slice));
}
// Receives first from the child with the smallest subtree. Returns the slice of the sum.
inline Slice sum_up(Plan& plan, const Tree& tree, Slice own, Slice target) {
  Slice sum = own;
  for (int i = 0; i < tree.children(); ++i, sum = target)
    plan.add(receive_reduce(tree.rank_of(tree.child(i)), sum, target));
  return sum;
}

inline Plan broadcast(const Call& call) {
  const Tree tree(call);
  Plan plan{call.pieces};
  for (int piece = 0; piece < plan.pieces; ++piece) {
    if (tree.place > 0) plan.add(receive(tree.parent(), output(piece)));
    send_down(plan, tree, tree.place > 0 ? output(piece) : input(piece));
  }
  if (tree.place == 0) plan.add(copy(input(0, plan.pieces), output(0, plan.pieces)));
  return plan;
}

inline int reduce_bays(const Call& call) {
  const Tree tree(call);
  return tree.place > 0 && tree.children() > 0 ? call.pieces : 0;
}
inline Plan reduce(const Call& call) {
  const Tree tree(call);
  Plan plan{call.pieces, 1, reduce_bays(call)};
  for (int piece = 0; piece < plan.pieces; ++piece) {
    const Slice target = tree.place > 0 ? scratch(piece, piece) : output(piece);
    const Slice sum = sum_up(plan, tree, input(piece), target);
    plan.add(tree.place > 0 ? send(tree.parent(), sum) : copy(sum, target));
  }
  return plan;
}

// Rank 0 sums the pieces and sends each piece back as soon as its sum is complete.
inline Plan all_reduce(const Call& call) {
  const Tree tree(call, 0);
  Plan plan{call.pieces};
  for (int piece = 0; piece < plan.pieces; ++piece) {
    const Slice sum = sum_up(plan, tree, input(piece), output(piece));
    if (tree.place > 0) {
      plan.add(send(tree.parent(), sum));
    } else {
      plan.add(copy(sum, output(piece)));
      send_down(plan, tree, output(piece));
    }
  }
  for (int piece = 0; piece < plan.pieces && tree.place > 0; ++piece) {
    plan.add(receive(tree.parent(), output(piece)));
    send_down(plan, tree, output(piece));
  }
  return plan;
}

// Returns the child of the root whose subtree continues from the last rank to rank 0, or 0. At most
// one child has such a subtree. Its shares are contiguous by place but not in the root's buffer, so
// they pass through the root's scratch.
inline int around_the_end(const Tree& tree) {
  for (int i = 0; i < tree.children(); ++i) {
    const int child = tree.child(i), begin = tree.rank_of(child);
    if (tree.place == 0 && begin + tree.size(child) > tree.ranks) return child;
  }
  return 0;
}
inline int share_bays(const Call& call) {
  const Tree tree(call);
  if (tree.place > 0) return tree.size() > 1 ? tree.size() : 0;
  const int child = around_the_end(tree);
  return child > 0 ? tree.size(child) : 0;
}

inline Plan gather(const Call& call) {
  const Tree tree(call);
  Plan plan{1, call.ranks, share_bays(call)};
  const int split = around_the_end(tree);
  if (tree.place == 0) plan.add(copy(input(0), output(call.root)));
  if (tree.place > 0 && tree.size() > 1) plan.add(copy(input(0), scratch(0, 0)));
  for (int i = 0; i < tree.children(); ++i) {
    const int child = tree.child(i), size = tree.size(child), peer = tree.rank_of(child);
    if (tree.place > 0) {
      plan.add(receive(peer, scratch(child - tree.place, 0, size)));
    } else if (child != split) {
      plan.add(receive(peer, output(peer, size)));
    } else {
      const int before = call.ranks - peer;
      plan.add(receive(peer, scratch(0, 0, size)));
      plan.add(copy(scratch(0, 0, before), output(peer, before)));
      plan.add(copy(scratch(before, 0, size - before), output(0, size - before)));
    }
  }
  if (tree.place > 0)
    plan.add(send(tree.parent(), tree.size() > 1 ? scratch(0, 0, tree.size()) : input(0)));
  return plan;
}

inline Plan scatter(const Call& call) {
  const Tree tree(call);
  Plan plan{1, call.ranks, share_bays(call)};
  const int split = around_the_end(tree);
  if (tree.place > 0)
    plan.add(receive(tree.parent(), tree.size() > 1 ? scratch(0, 0, tree.size()) : output(0)));
  for (int i = tree.children(); i-- > 0;) {
    const int child = tree.child(i), size = tree.size(child), peer = tree.rank_of(child);
    if (tree.place > 0) {
      plan.add(send(peer, scratch(child - tree.place, 0, size)));
    } else if (child != split) {
      plan.add(send(peer, input(peer, size)));
    } else {
      const int before = call.ranks - peer;
      plan.add(copy(input(peer, before), scratch(0, 0, before)));
      plan.add(copy(input(0, size - before), scratch(before, 0, size - before)));
      plan.add(send(peer, scratch(0, 0, size)));
    }
  }
  if (tree.place == 0) plan.add(copy(input(call.root), output(0)));
  if (tree.place > 0 && tree.size() > 1) plan.add(copy(scratch(0, 0), output(0)));
  return plan;
}

// Every edge of the tree carries the whole buffer.
constexpr Volume down_volume(const Tree& tree, int pieces, std::int64_t count) {
  const int children = tree.children(), parents = tree.place > 0;
  return {children * count, children * pieces, parents * count, parents * pieces};
}
inline Volume broadcast_volume(const Call& call, std::int64_t count) {
  return down_volume(Tree(call), call.pieces, count);
}
inline Volume reduce_volume(const Call& call, std::int64_t count) {
  return broadcast_volume(call, count).reversed();
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  Volume both = down_volume(Tree(call, 0), call.pieces, count);
  return both += both.reversed();
}
// An edge carries the shares of the subtree below it.
inline Volume scatter_volume(const Call& call, std::int64_t count) {
  const Tree tree(call);
  const int parents = tree.place > 0;
  return {(tree.size() - 1) * count, tree.children(), parents * tree.size() * count, parents};
}
inline Volume gather_volume(const Call& call, std::int64_t count) {
  return scatter_volume(call, count).reversed();
}

static_assert(Tree({0, 6}, 0).children() == 3 && Tree({4, 6}, 0).size() == 2);

}  // namespace collectives::binomial_tree
