#pragma once
// What a training step is held against besides its numbers: bytes held, bytes sent, and the plan
// of its pipeline (expectations.h). On every rank of the case.

#include <cstddef>
#include <map>
#include <string>

#include "harness/judge.h"
#include "suite/training_step/trainer.h"

namespace suite {

using CategoryPeaks = std::map<machine::Category, std::size_t>;

// peaks: of this trainer's tensors, over a step that is not its first.
void judge_memory(harness::Judge& judge, const Trainer& trainer, const machine::Device& device,
                  const CategoryPeaks& peaks);

// Trains one step more.
void judge_volume(harness::Judge& judge, Trainer& trainer);

// Of the trainer's last step.
void judge_schedule(harness::Judge& judge, const Trainer& trainer);

// Which part of a parameter this rank holds, for keys of determinism: "" or " (part 1)".
std::string shard_text(const collectives::Parameter& parameter, const Trainer& trainer);

}  // namespace suite
