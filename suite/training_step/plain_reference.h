#pragma once
// The double run of the reference (reference.h) by the plain implementation
// (suite/reference/plain/training.h), which shares no code with layers, zero and the trainer. The
// data, the learning rate of an update and the skipped steps are its inputs.

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "suite/training_step/reference.h"

namespace suite {

// Returns why the run is not made by plain loops, or empty.
std::string why_not_plain(const TrainingConfig& config);

// Returns the number of tokens that count in a step, over all ranks.
double tokens_that_count(const TrainingConfig& config, const Corpus& corpus, int step);

// Judges the decisions of a step's routers by their logits, exactly, and returns those of all ranks
// (Trainer::gathered_routing). Collective over the trainer's group.
StepRouting judged_routing(harness::Judge& judge, const Trainer& trainer, int step);
// Compares the logits of every step with the double run.
void judge_logits(harness::Judge& judge, const TrainingRouting& routing,
                  const Reference& reference);

// Trains reference_steps steps. Parameters have layer 0. Calls `alive` after every step. routing:
// of a model with experts.
History plain_history(const TrainingConfig& config, const Corpus& corpus,
                      const SkippedSteps& skipped, const std::function<void()>& alive,
                      const TrainingRouting& routing = {});

// A training whose updates use given sums of gradients, one for each step, or given momenta after
// the variance of a 1-bit rule is constant. skipped: the steps that do not update; empty: no step.
// shifts: returns what is added to a parameter while a step's gradients are computed; empty:
// nothing.
struct DrivenStep {
  double loss = 0, gradient_norm = 0;  // norm: of the given sums over the tokens, before clipping
  // The gradients of the sum of the losses, and the values after the update, by parameter.
  std::map<std::string, std::vector<double>> gradients, values;
  static auto members(auto& self) {
    return std::tie(self.loss, self.gradient_norm, self.gradients, self.values);
  }
};
using GradientSums = std::vector<std::map<std::string, std::vector<double>>>;
using ValueShifts = std::function<std::vector<double>(std::size_t step, const std::string& name,
                                                      const std::vector<double>& values)>;
std::vector<DrivenStep> driven_history(const TrainingConfig& config, const Corpus& corpus,
                                       const GradientSums& sums, const std::function<void()>& alive,
                                       const std::vector<bool>& skipped = {},
                                       const ValueShifts& shifts = {});

}  // namespace suite
