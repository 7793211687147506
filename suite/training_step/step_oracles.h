#pragma once
// What a training step is held against besides its numbers: bytes held, bytes sent, and the plan
// of its pipeline (expectations.h). On every rank of the case.

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "harness/judge/judge.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/half_range.h"

namespace suite {

using CategoryPeaks = std::map<machine::Category, std::size_t>;

// Steps until one is not skipped, as a dynamic loss scale comes down; before each of them `begin`.
// Whether there was one, of 64 at most.
bool take_step(
    Trainer& trainer, const std::function<void()>& begin = [] {});

// peaks: of this trainer's tensors, over a step that is not its first and was not skipped; empty:
// there was none.
void judge_memory(harness::Judge& judge, const Trainer& trainer, const machine::Device& device,
                  const CategoryPeaks& peaks);

// Takes one step more.
void judge_volume(harness::Judge& judge, Trainer& trainer);

// Of the trainer's last step.
void judge_schedule(harness::Judge& judge, const Trainer& trainer);

// Between reduce and update: whether gradients of any rank hold an infinity or a NaN. Only half,
// whose range is short, is looked at. Collective over the group.
bool gradients_overflow(Trainer& trainer, machine::World& world, const machine::Group& group);
// Of a step at this loss scale: whether it was skipped where it had to be, and only there.
void judge_overflow(harness::Judge& judge, const TrainingConfig& config, int step, bool skipped,
                    double scale, const StepMagnitudes& in_double);

// Which part of a parameter this rank holds, for keys of determinism: "" or " (part 1)".
std::string shard_text(const collectives::Parameter& parameter, const Trainer& trainer);

}  // namespace suite
