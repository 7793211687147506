#pragma once
// The control plane's collectives over a Post. Texts go up and down a binomial tree, so that a call
// costs each of P ranks at most 2 log2 P messages, and all of them together 2 (P - 1).
//
// Collective over the group; a root is an index into it. Calls cannot deadlock although texts wait
// for their receivers: in one phase, no rank both receives from a child and sends to it.

#include <string>
#include <string_view>
#include <vector>

#include "machine/base/operation.h"
#include "machine/world/control/post.h"
#include "machine/world/group.h"

namespace machine::control {

// A member's neighbours in the tree. Child k is 2^k places after this member, counted from the root
// around the group. It leads at most 2^k members.
struct Tree {
  int parent = -1;  // -1: this is the root
  std::vector<int> children;
};
Tree binomial_tree(int size, int index, int root);

// Returns the texts of all members in their order, each after its length. Empty except on the first
// member.
std::string gather(Post& post, const Group& group, std::string_view mine, Operation during);
std::vector<std::string> split(std::string_view gathered);
// Returns the root's text.
std::string broadcast(Post& post, const Group& group, int root, std::string_view mine,
                      Operation during);

std::vector<std::string> all_gather(Post& post, const Group& group, std::string_view mine);
// The halves of a barrier. wait_for_all waits for the members of this rank's subtree. release_all
// waits until the first member calls it.
void wait_for_all(Post& post, const Group& group);
void release_all(Post& post, const Group& group);

}  // namespace machine::control
