#pragma once
// Timelines of pipelines in records.

#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/trainer/trainer.h"

namespace suite {

// The bars of all ranks, the first of which starts at 0. Collective over the group. Ranks of a host
// share the clock.
std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline);

// Likewise for spans on the steady clock; sets their ranks.
std::vector<harness::Span> gather_spans(machine::World& world, const machine::Group& group,
                                        const std::vector<harness::Span>& mine);

// Describes rank 0's pipeline: describe_bubble (measured_step.h) for equal stages whose passes take
// the measured mean; the counter bubble_simulated, for stages with their own times; and a note with
// the layers of each part if layers are divided by cost. Collective over the group, whose size is
// the product of the degrees.
void describe_pipeline(harness::Description& description, machine::World& world,
                       const machine::Group& group, const TrainingConfig& config,
                       const pipeline::Timeline& timeline);

}  // namespace suite
