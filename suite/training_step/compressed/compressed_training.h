#pragma once
// The oracle of ten steps whose gradients are compressed (--gradient-compression):
//
//   gradient, update  as in driven_training.h, with the compressed sums of gradients
//   compression       each sum against a second implementation (suite/reference/compressed_sums.h)

#include <functional>

#include "harness/judge/judge.h"
#include "harness/unit/unit.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/compressed/driven_training.h"
#include "suite/training_step/step_sweep.h"

namespace suite {

bool compresses_gradients(const TrainingConfig& config);

// Adds the cases of gpt_step with compressed gradients.
void add_compression_slices(harness::Sweep<TrainingCase>& sweep);

// exact is empty if the model is too large for plain loops; then gradients, values and losses are
// not compared. Collective over the group. after_step is called after every step, from 0.
CompressedTraining judge_compressed_training(harness::Judge& judge, harness::Context& context,
                                             const TrainingConfig& config, const Corpus& corpus,
                                             const std::function<void(Trainer&, int)>& after_step);

}  // namespace suite
