#include "machine/world/group.h"

#include <numeric>

namespace machine {

Group first_ranks(const std::string& name, int ranks, int world_rank) {
  Group group{name, std::vector<int>(static_cast<std::size_t>(ranks)),
              world_rank < ranks ? world_rank : -1};
  std::iota(group.members.begin(), group.members.end(), 0);
  return group;
}

}  // namespace machine
