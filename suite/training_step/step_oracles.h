#pragma once
// The oracles of a training step except its numbers, on every rank of the case: bytes held, bytes
// sent and the pipeline's schedule (expectations.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "harness/judge/judge.h"
#include "suite/reference/half_range.h"
#include "suite/trainer/trainer.h"

namespace suite {

using CategoryPeaks = std::map<machine::Category, std::size_t>;

// Takes steps until one is not skipped (a dynamic loss scale decreases), at most 64, and calls
// `begin` before each. Returns false if all steps were skipped.
bool take_step(
    Trainer& trainer, const std::function<void()>& begin = [] {});

// peaks: bytes of this trainer's tensors, over a step that is not its first and was not skipped;
// empty if there was no such step. rows: of the experts in this step. updates: before it.
void judge_memory(harness::Judge& judge, const Trainer& trainer, const CategoryPeaks& peaks,
                  const RoutedRows& rows, std::int64_t updates = 0);

// Takes one more step and judges its volume. The library does not count its bytes. If it runs
// collectives of some groups, the oracle rules on the other calls, and if there are none, it does
// not apply. Returns the bytes that this rank sent over each group, by the group's name.
std::map<std::string, std::uint64_t> judge_volume(harness::Judge& judge, Trainer& trainer);

// Judges the trainer's last step.
void judge_schedule(harness::Judge& judge, const Trainer& trainer);

// Returns whether any rank's gradients contain an infinity or a NaN. Returns false for dtypes other
// than half, because only half has a small range. Call it between reduce and update. Collective
// over the group.
bool gradients_overflow(Trainer& trainer, machine::World& world, const machine::Group& group);
// Judges whether the step was skipped at this loss scale if and only if it overflows.
void judge_overflow(harness::Judge& judge, const TrainingConfig& config, int step, bool skipped,
                    double scale, const StepMagnitudes& in_double);

// Returns the part of a parameter that this rank holds, for keys of determinism: "" or " (part 1)".
std::string shard_text(const collectives::Parameter& parameter, const Trainer& trainer);

}  // namespace suite
