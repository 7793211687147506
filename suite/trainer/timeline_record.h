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

// Shifts the spans so that the first starts at 0.
void start_at_zero(std::vector<harness::Span>& spans);

// Describes rank 0's pipeline: describe_bubble (measured_step.h) for equal stages whose passes take
// the measured mean; the counter bubble_simulated, for stages that take their own times; and a note
// with the layers of each part if layers are divided by cost. Collective over the group, whose size
// is the product of the degrees.
void describe_pipeline(harness::Description& description, machine::World& world,
                       const machine::Group& group, const TrainingConfig& config,
                       const pipeline::Timeline& timeline);

}  // namespace suite
