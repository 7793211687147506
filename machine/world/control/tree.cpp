#include "machine/world/control/tree.h"

#include <ranges>

#include "machine/base/bytes.h"

namespace machine::control {
namespace {

int member(const Group& group, int index) { return group.members[index]; }

}  // namespace

Tree binomial_tree(int size, int index, int root) {
  const int place = (index - root + size) % size;  // 0: the root
  const auto index_of = [&](int other) { return (other + root) % size; };
  Tree tree;
  if (place > 0) tree.parent = index_of(place & (place - 1));
  for (int distance = 1; (place & distance) == 0 && place + distance < size; distance *= 2)
    tree.children.push_back(index_of(place + distance));
  return tree;
}

std::string gather(Post& post, const Group& group, std::string_view mine, Operation during) {
  const Tree tree = binomial_tree(group.size(), group.index, 0);
  std::string all = encode(mine);
  for (const int child : tree.children) all += post.receive(member(group, child), during);
  if (tree.parent < 0) return all;
  post.send(member(group, tree.parent), all, during);
  return {};
}

std::vector<std::string> split(std::string_view gathered) {
  std::vector<std::string> texts;
  while (!gathered.empty()) take(gathered, texts.emplace_back());
  return texts;
}

std::string broadcast(Post& post, const Group& group, int root, std::string_view mine,
                      Operation during) {
  const Tree tree = binomial_tree(group.size(), group.index, root);
  std::string text =
      tree.parent < 0 ? std::string(mine) : post.receive(member(group, tree.parent), during);
  // The largest subtree first.
  for (const int child : tree.children | std::views::reverse)
    post.send(member(group, child), text, during);
  return text;
}

std::vector<std::string> all_gather(Post& post, const Group& group, std::string_view mine) {
  const std::string gathered = gather(post, group, mine, Operation::all_gather);
  return split(broadcast(post, group, 0, gathered, Operation::all_gather));
}

void wait_for_all(Post& post, const Group& group) {
  const Tree tree = binomial_tree(group.size(), group.index, 0);
  for (const int child : tree.children) post.receive(member(group, child), Operation::barrier);
  if (tree.parent >= 0) post.send(member(group, tree.parent), {}, Operation::barrier);
}

void release_all(Post& post, const Group& group) {
  broadcast(post, group, 0, {}, Operation::barrier);
}

}  // namespace machine::control
