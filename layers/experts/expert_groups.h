#pragma once
// The groups of expert parallelism, in Megatron's order: expert tensor parallelism varies fastest,
// then the experts, then their replicas. Every rank has its own tokens.
//
//   ranks 8, ep 2, etp 2:   experts {0 1 2 3} {4 5 6 7}   etp {0 1} {2 3} {4 5} {6 7}
//                           edp {0 4} {1 5} {2 6} {3 7}
//
// A rank holds num_experts/ep experts, each split over etp. The ranks of `edp` hold the same parts
// of the same experts and add up their gradients. All ranks hold the router and the shared expert.

#include "machine/world/grid.h"

namespace layers {

struct ExpertParallel {
  int ep = 1, etp = 1;
  int ranks() const { return ep * etp; }  // that exchange tokens
};

struct ExpertGroups {
  machine::Group experts, etp, edp;
};
// Throws std::invalid_argument unless ep etp divides the ranks of `all`.
ExpertGroups expert_groups(const machine::Group& all, ExpertParallel degrees);

}  // namespace layers
