#pragma once
// The oracles of a training by 8-bit AdamW (--optimizer adamw_8bit). A rounding may change a code,
// and so every later step, so each step is judged by its own inputs:
//
//   gradient, update  as in driven_training.h. The plain training is driven with the sums of
//                     gradients and with the moments before each update, decoded from the judged
//                     codes by suite/zero/dynamic_tree.h
//   codes             of every rank, with scales and masters, from its own codes, masters and
//                     gradients: suite/zero/eight_bit_update.h. With it blocks of 256 elements that
//                     count from the first element of a parameter's part, however ZeRO shards it

#include <functional>

#include "suite/training_step/compressed/driven_training.h"
#include "suite/training_step/step_sweep.h"

namespace suite {

// Adds the cases of gpt_step with this optimizer.
void add_eight_bit_slices(harness::Sweep<TrainingCase>& sweep);

// exact is empty if the model is too large for plain loops; then only codes are judged. Collective
// over the group. after_step is called after every step, from 0.
CompressedTraining judge_eight_bit_training(harness::Judge& judge, harness::Context& context,
                                            const TrainingConfig& config, const Corpus& corpus,
                                            const std::function<void(Trainer&, int)>& after_step);

}  // namespace suite
