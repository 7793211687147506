#pragma once
// A set of ranks that work together, in order: the group's rank i is the world's rank members[i].

#include <numeric>
#include <string>
#include <vector>

namespace machine {

struct Group {
  std::string name;          // "world", "tp", "dp", …: named in records and in error messages
  std::vector<int> members;  // ranks of the world, ascending along the group's axis
  int index = 0;             // this rank's place among them

  int size() const { return static_cast<int>(members.size()); }
};

// Returns the first `ranks` ranks of the world; index is -1 for a rank outside.
inline Group first_ranks(const std::string& name, int ranks, int world_rank) {
  Group group{name, std::vector<int>(ranks), world_rank < ranks ? world_rank : -1};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

}  // namespace machine
