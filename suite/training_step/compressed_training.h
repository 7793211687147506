#pragma once
// The oracle of ten steps whose gradients are compressed (--gradient-compression). Compression
// changes every later step, so such a training is far from one without. Each step is judged by its
// own inputs:
//
//   gradient     of each parameter before compression, summed over dp, against the plain
//                implementation in double (plain_reference.h)
//   compression  each sum against a second implementation (suite/reference/compressed_sums.h)
//   update       the plain training updates with the judged run's compressed sums. Losses, norms
//   and
//                values of both trainings may differ only by rounding
//
// The bound of a gradient is that of reference.h, plus the roundings of the earlier updates of the
// values. The bound of values and losses follows from repeating the plain training with sums that
// are displaced by the roundings of an update, as in reference.h.

#include <functional>
#include <tuple>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/unit/unit.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/step_sweep.h"

namespace suite {

bool compresses_gradients(const TrainingConfig& config);

// Adds the cases of gpt_step with compressed gradients.
void add_compression_slices(harness::Sweep<TrainingCase>& sweep);

// The losses of the ten steps, those of the plain training, the bounds of their differences and the
// largest relative difference. exact is empty if the model is too large for plain loops; then
// gradients, values and losses are not compared.
using CompressedTraining =
    std::tuple<std::vector<double>, std::vector<double>, std::vector<double>, double>;
// Collective over the group. after_step is called after every step, from 0.
CompressedTraining judge_compressed_training(harness::Judge& judge, harness::Context& context,
                                             const TrainingConfig& config, const Corpus& corpus,
                                             const std::function<void(Trainer&, int)>& after_step);

}  // namespace suite
