#pragma once
// The trainings that a reference (reference.h) consists of. They do not depend on each other, so
// the ranks of a case share them.

#include <array>
#include <string>

#include "suite/training_step/reference.h"

namespace suite {

struct ReferenceRuns {
  History undisturbed;                    // the judged code in double
  History plain;                          // by plain loops; empty if they do not train this model
  History same;                           // in the judged dtype
  std::array<History, probes> disturbed;  // in double
};

// Collective over the group. The result is rank 0's; other ranks get what they computed.
ReferenceRuns reference_runs(machine::World& world, const machine::Group& group,
                             const TrainingConfig& config, const Corpus& corpus,
                             const SkippedSteps& skipped, const TrainingRouting& routing);

// Returns what of a gradient is in half.
RangeDevice::InHalf in_half(const TrainingConfig& config);
// Returns a text of everything that changes a number in training on one device.
std::string what_is_trained(TrainingConfig config, const Corpus& corpus);
// Returns a text that differs if any decision does.
std::string what_is_decided(const SkippedSteps& skipped, const TrainingRouting& routing);

}  // namespace suite
