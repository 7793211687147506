#pragma once
// Timelines of pipelines in records.

#include <string>
#include <vector>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "pipeline/execute.h"
#include "suite/trainer/trainer.h"

namespace suite {

// Returns the bars of all ranks. The first bar starts at 0. Collective over the group. Ranks of a
// host share the clock.
std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline);

// As gather_timeline, for spans on the steady clock. Sets their ranks.
std::vector<harness::Span> gather_spans(machine::World& world, const machine::Group& group,
                                        const std::vector<harness::Span>& mine);

// Describes rank 0's pipeline. describe_bubble (measured_step.h) assumes equal stages whose passes
// take the measured mean. The counter bubble_simulated uses the own times of each stage. If layers
// are divided by cost, a note has the layers of each part. Collective over the group, whose size is
// the product of the degrees.
void describe_pipeline(harness::Description& description, machine::World& world,
                       const machine::Group& group, const TrainingConfig& config,
                       const pipeline::Timeline& timeline);

}  // namespace suite
