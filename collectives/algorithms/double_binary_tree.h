#pragma once
// Double binary tree: two trees over the same ranks, each with half of the data. An inner node of
// one tree is a leaf of the other. So every rank receives and sends all of the data about once, in
// log2 N rounds (Sanders, Speck and Träff 2009, doi:10.1016/j.parco.2009.09.001).
//
// In the first tree odd places are leaves. The second tree is the mirror image if the number of
// places is even, and is shifted by one place if it is odd. A root chosen by the caller is above
// both trees. The two halves are summed in different orders.

#include <array>
#include <bit>

#include "collectives/plan.h"

namespace collectives::double_binary_tree {

inline constexpr std::string_view paper =
    "Sanders, Speck and Träff 2009, doi:10.1016/j.parco.2009.09.001";

// Ranks of a node's neighbours in a tree; -1: no neighbour.
struct Node {
  int parent = -1;
  std::array<int, 2> children = {-1, -1};
};

// Returns the node of a place in the inorder tree of places 1 … size. The lowest set bit of a place
// is its height above the leaves.
constexpr Node inorder(int place, int size) {
  const int low = place & -place;
  Node node;
  node.parent = (place ^ low) | (2 * low);
  if (node.parent > size) node.parent = place ^ low;  // 0: the top
  if (low > 1) node.children[0] = place - low / 2;
  for (int step = low / 2; step > 0 && node.children[1] < 0; step /= 2)
    if (place + step <= size) node.children[1] = place + step;
  return node;
}

// Returns this rank's node in tree 0 or 1, over all ranks or, if rooted, over all ranks except the
// root.
constexpr Node node_of(const Call& call, int tree, bool rooted) {
  const int ranks = call.ranks, size = rooted ? ranks - 1 : ranks;
  const int place = rooted ? (call.rank - call.root + ranks) % ranks : call.rank + 1;
  const auto rank_at = [&](int at) {  // `at` counts places of this tree
    if (at <= 0) return at == 0 && rooted ? call.root : -1;
    if (tree == 1) at = size % 2 == 0 ? size + 1 - at : at == 1 ? size : at - 1;
    return rooted ? (call.root + at) % ranks : at - 1;
  };
  if (place == 0)
    return {-1, {rank_at(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), -1}};
  const int at = tree == 0 ? place : size % 2 == 0 ? size + 1 - place : place % size + 1;
  const Node node = inorder(at, size);
  return {rank_at(node.parent), {rank_at(node.children[0]), rank_at(node.children[1])}};
}

inline void send_down(Plan& plan, const Node& node, Slice slice) {
  for (const int child : node.children)
    if (child >= 0) plan.add(send(child, slice));
}
// Returns the slice of the sum.
inline Slice sum_up(Plan& plan, const Node& node, Slice own, Slice target) {
  Slice sum = own;
  for (const int child : node.children) {
    if (child < 0) continue;
    plan.add(receive_reduce(child, sum, target));
    sum = target;
  }
  return sum;
}

inline Plan broadcast(const Call& call) {
  const int pieces = call.pieces;
  const bool root = call.rank == call.root;
  Plan plan{pieces, 2};
  for (int piece = 0; piece < pieces; ++piece)
    for (int tree = 0; tree < 2 && call.ranks > 1; ++tree) {
      const int chunk = tree * pieces + piece;
      const Node node = node_of(call, tree, true);
      if (!root) plan.add(receive(node.parent, output(chunk)));
      send_down(plan, node, root ? input(chunk) : output(chunk));
    }
  if (root) plan.add(copy(input(0, 2 * pieces), output(0, 2 * pieces)));
  return plan;
}

// Returns the number of children, from the shape of a tree. Odd places have no children. Even
// places have two, or one if the place is the last.
constexpr int children(const Call& call, int tree, bool rooted) {
  const int ranks = call.ranks, size = rooted ? ranks - 1 : ranks;
  const int place = rooted ? (call.rank - call.root + ranks) % ranks : call.rank + 1;
  if (place == 0) return size > 0 ? 1 : 0;
  const int at = tree == 0 ? place : size % 2 == 0 ? size + 1 - place : place % size + 1;
  return at % 2 != 0 ? 0 : at < size ? 2 : 1;
}

// A rank is an inner node of only one tree, so it needs bays for one tree.
inline int reduce_bays(const Call& call) {
  if (call.rank == call.root) return 0;
  return children(call, 0, true) + children(call, 1, true) > 0 ? call.pieces : 0;
}
inline Plan reduce(const Call& call) {
  const int pieces = call.pieces;
  const bool root = call.rank == call.root;
  Plan plan{pieces, 2, reduce_bays(call)};
  if (call.ranks == 1) plan.add(copy(input(0, 2 * pieces), output(0, 2 * pieces)));
  for (int piece = 0; piece < pieces; ++piece)
    for (int tree = 0; tree < 2 && call.ranks > 1; ++tree) {
      const int chunk = tree * pieces + piece;
      const Node node = node_of(call, tree, true);
      const Slice target = root ? output(chunk) : scratch(piece, chunk);
      const Slice sum = sum_up(plan, node, input(chunk), target);
      if (!root) plan.add(send(node.parent, sum));
    }
  return plan;
}

// Up and down overlap. A piece goes down after the next `delay` pieces have gone up; `delay` covers
// the height of the trees. All ranks use the same delay, because two ranks can be parent and child
// in one tree and child and parent in the other. They must agree on the next message.
inline Plan all_reduce(const Call& call) {
  const int ranks = call.ranks, pieces = call.pieces;
  if (ranks == 1) return copy_of_input(pieces);
  Plan plan{pieces, 2};
  const int delay = std::bit_width(static_cast<unsigned>(ranks));
  for (int time = 0; time < pieces + delay; ++time) {
    for (int tree = 0; tree < 2 && time < pieces; ++tree) {
      const int chunk = tree * pieces + time;
      const Node node = node_of(call, tree, false);
      const Slice sum = sum_up(plan, node, input(chunk), output(chunk));
      if (node.parent >= 0) plan.add(send(node.parent, sum));
    }
    for (int tree = 0; tree < 2 && time >= delay; ++tree) {
      const int chunk = tree * pieces + time - delay;
      const Node node = node_of(call, tree, false);
      if (node.parent >= 0) plan.add(receive(node.parent, output(chunk)));
      send_down(plan, node, output(chunk));
    }
  }
  return plan;
}

// Every edge of each tree carries half of the data downwards.
constexpr Volume down_volume(const Call& call, bool rooted, std::int64_t count) {
  Volume volume;
  const int size = rooted ? call.ranks - 1 : call.ranks;
  const int top = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  for (int tree = 0; tree < 2; ++tree) {
    const std::int64_t half = part_of(count, 2, tree).size();
    const int down = children(call, tree, rooted);
    const int at_top = tree == 0 ? top : size % 2 == 0 ? size + 1 - top : top == 1 ? size : top - 1;
    const bool is_top = rooted ? call.rank == call.root : call.rank == at_top - 1;
    volume += {down * half, down * call.pieces, is_top ? 0 : half, is_top ? 0 : call.pieces};
  }
  return volume;
}
inline Volume broadcast_volume(const Call& call, std::int64_t count) {
  return down_volume(call, true, count);
}
inline Volume reduce_volume(const Call& call, std::int64_t count) {
  return down_volume(call, true, count).reversed();
}
inline Volume all_reduce_volume(const Call& call, std::int64_t count) {
  Volume both = down_volume(call, false, count);
  return both += both.reversed();
}

static_assert(children({2, 8}, 0, false) == 0 && children({2, 8}, 1, false) == 2);

}  // namespace collectives::double_binary_tree
