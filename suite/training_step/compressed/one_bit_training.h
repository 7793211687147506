#pragma once
// The oracles of a training by 1-bit Adam or 1-bit LAMB over several replicas (--optimizer
// one_bit_adam, one_bit_lamb):
//
//   gradient, update  as in driven_training.h. The driving sums are gradients before the variance
//                     is constant, and then the summed momenta
//   norms             of each replica's own gradient, with the factors that clip them, from the
//                     gradients of all ranks in double
//   momentum          that each rank forms, element by element, from its own last momentum and
//                     gradient: two products and a sum of float; with 1-bit LAMB times a constant
//                     of its parameter
//   sum               of momenta, bit for bit (suite/reference/one_bit_sums.h)
//   volume, memory    of a step in both phases

#include <functional>

#include "suite/training_step/compressed/driven_training.h"
#include "suite/training_step/step_sweep.h"

namespace suite {

// Returns whether replicas sum momenta after the warm-up.
bool sums_momenta(const TrainingConfig& config);

// Adds the cases of gpt_step with these optimizers.
void add_one_bit_slices(harness::Sweep<TrainingCase>& sweep);

// exact is empty if the model is too large for plain loops; then only sums of momenta are judged.
// Collective over the group. after_step is called after every step, from 0.
CompressedTraining judge_one_bit_training(harness::Judge& judge, harness::Context& context,
                                          const TrainingConfig& config, const Corpus& corpus,
                                          const std::function<void(Trainer&, int)>& after_step);

// Judges bytes of a step in the warm-up and after it, and the memory after it. Does nothing if the
// warm-up has reference_steps or more.
void judge_one_bit_phases(harness::Judge& judge, harness::Context& context,
                          const TrainingConfig& config, const Corpus& corpus);

}  // namespace suite
