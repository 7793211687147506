#pragma once
// Timelines of pipelines as records show them.

#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/trainer/trainer.h"

namespace suite {

// All ranks' bars on one axis that starts at the first of them. Collective over the group; the
// clock is shared by the ranks of a host.
std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline);

// Of rank 0's pipeline: describe_bubble (suite/trainer/measured_step.h), expected of equal stages
// whose passes take what they took here in the mean of all; the counter bubble_simulated, of stages
// that take each what it took; and where layers are divided by what they
// cost, a note of how many each part has. Collective over the group, whose size is the product of
// the degrees.
void describe_pipeline(harness::Description& description, machine::World& world,
                       const machine::Group& group, const TrainingConfig& config,
                       const pipeline::Timeline& timeline);

}  // namespace suite
