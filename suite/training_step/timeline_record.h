#pragma once
// Timelines of pipelines as records show them.

#include <string>
#include <utility>
#include <vector>

#include "harness/record.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"

namespace suite {

// All ranks' bars on one axis that starts at the first of them. Collective over the group; the
// clock is shared by the ranks of a host.
std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline);

// Where a step's time went on this rank, in order; sums to passes + reduce + update.
std::vector<std::pair<std::string, double>> step_breakdown(const pipeline::Timeline& timeline,
                                                           double reduce_s, double update_s,
                                                           double passes_s);

}  // namespace suite
