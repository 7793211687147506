#pragma once
// How close the update of states in a file is to the limit of the disk.

#include <functional>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "zero/stages/step.h"

namespace suite {

// Alternates updates with passes over the file that read and write the same bytes and compute
// nothing, on all ranks at once. Counters, as medians over rounds of the slowest rank: update_s
// (with norm and publishing), file_pass_s, file_fraction (the pass over the update: 1 if only the
// disk is waited for) and nvme_GBps (of the update). before_update: forward, backward and
// reduction. The step's states are in a file, its values are not. Collective over the group; rank
// 0's are recorded.
void describe_file_bound(harness::Description& description, machine::World& world,
                         const machine::Group& group, zero::Step& step,
                         const std::function<void()>& before_update);

}  // namespace suite
