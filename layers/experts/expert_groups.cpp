#include "layers/experts/expert_groups.h"

#include "machine/base/reject.h"

namespace layers {

ExpertGroups expert_groups(const machine::Group& all, ExpertParallel degrees) {
  const int block = degrees.ranks();
  if (block < 1 || all.size() % block != 0)
    machine::reject(
        "expert-model-parallel-size {} x expert-tensor-parallel-size {} is {}; expected a divisor "
        "of {} ranks (example: 1)",
        degrees.ep, degrees.etp, block, all.size());
  const int place = all.index % block;
  ExpertGroups groups{{"ep", {}, place}, {"etp", {}, place % degrees.etp}, {"edp", {}, 0}};
  groups.edp.index = all.index / block;
  for (int rank = 0; rank < all.size(); ++rank) {
    const int member = all.members[static_cast<std::size_t>(rank)];
    if (rank / block == all.index / block) groups.experts.members.push_back(member);
    if (rank / degrees.etp == all.index / degrees.etp) groups.etp.members.push_back(member);
    if (rank % block == place) groups.edp.members.push_back(member);
  }
  return groups;
}

}  // namespace layers
