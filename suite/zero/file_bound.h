#pragma once
// How near the update of states in a file is to what the file's disk allows.

#include <functional>

#include "harness/record/description.h"
#include "machine/world/world.h"
#include "zero/stages/step.h"

namespace suite {

// Updates in turn with passes over the file that read and write the same bytes and compute nothing,
// on all ranks at once. Counters, of medians over rounds of the slowest rank: update_s (norm and
// publishing with it), file_pass_s, file_fraction (the pass over the update: 1 where the disk alone
// is waited for) and nvme_GBps (of the update). before_update: forward, backward and reduction.
// The step's states are in a file, its values are not. Collective over the group; on rank 0 into
// the record.
void describe_file_bound(harness::Description& description, machine::World& world,
                         const machine::Group& group, zero::Step& step,
                         const std::function<void()>& before_update);

}  // namespace suite
