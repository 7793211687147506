#pragma once
// A training step judged without a reference in double: the losses of a few steps, and the oracles
// that need no second copy of the model.
//
//   judge_replicas(judge, trainer, step);        // after each step: equal bits on all replicas
//   const LossCurve curve = train(trainer, steps, [&](int step) { … });
//   judge_alone(judge, config, curve);           // --reference none
//   judge_stored(judge, config, curve, stored, path);

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/judge.h"
#include "suite/files/stored_curve.h"
#include "suite/trainer/trainer.h"

namespace suite {

struct LossCurve {
  std::vector<double> losses, gradient_norms;  // of each step, before its update
  std::vector<int> skipped;                    // steps, from 1, that were skipped
  double again = 0;  // loss of the first step's tokens after the last step
};

// Takes the steps, and calls after_step with each step from 1. Then repeats forward and backward of
// the first step's tokens, so take no further step. Collective over the group.
LossCurve train(Trainer& trainer, int steps, const std::function<void(int)>& after_step);

// Declares the bits of this rank's values: replicas over dp, parameters that tp replicates and tied
// tables must agree. Gathers one part of the model at a time. training: distinguishes the keys of
// another training of the case.
void judge_replicas(harness::Judge& judge, Trainer& trainer, int step,
                    std::string_view training = "");

// Losses and gradient norms must be finite, and the loss of the first step's tokens must fall.
// Otherwise numerics fails. If all is right, numerics is not applicable, because no number is
// compared.
void judge_alone(harness::Judge& judge, const TrainingConfig& config, const LossCurve& curve);

// The losses must also match the stored ones within the file's tolerance.
void judge_stored(harness::Judge& judge, const TrainingConfig& config, const LossCurve& curve,
                  const StoredCurve& stored, const std::string& path);

}  // namespace suite
