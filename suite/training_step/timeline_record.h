#pragma once
// Timelines of pipelines as records show them.

#include <string>
#include <vector>

#include "harness/record.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"

namespace suite {

// All ranks' bars on one axis that starts at the first of them. Collective over the group; the
// clock is shared by the ranks of a host.
std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline);

}  // namespace suite
