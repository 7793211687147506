#pragma once
// A judged training of ten steps, and the plain training in double (plain_reference.h) whose
// updates are driven with sums of the judged one: of gradients, or of momenta; and with moments
// that are codes. Compression changes every later step, so such a training is far from one without.
// Each step is judged by its own inputs:
//
//   gradient  of each parameter, summed over dp without compression, against the plain one. The
//             bound is that of reference.h, plus the roundings of the earlier updates of the values
//   update    values and losses of both trainings may differ only by rounding. The bound follows
//             from repeating the plain training with sums that are displaced by the roundings of an
//             update, as in reference.h, and with values that are displaced by a rounding of
//             16 bits while gradients are computed. These gradients differ, too

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/unit/unit.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/plain_reference.h"

namespace suite {

// A rank's part of a parameter's values in a step: of sums of gradients or of momenta.
struct ValuesPart {
  std::string name;
  std::int64_t row = 0, column = 0, columns = 0, global_columns = 0, global_size = 0;
  std::vector<double> values;
  static auto members(auto& self) {
    return std::tie(self.name, self.row, self.column, self.columns, self.global_columns,
                    self.global_size, self.values);
  }
};
ValuesPart part_of(const Trainer& trainer, const collectives::Parameter& parameter,
                   std::vector<double> values);

using PartsByRank = std::vector<std::vector<ValuesPart>>;
// Returns every rank's parts of what `values` returns for a parameter that is trained. Collective
// over the group.
PartsByRank gathered(
    const harness::Context& context, Trainer& trainer,
    const std::function<std::vector<double>(const collectives::Parameter&)>& values);

using ValuesByName = std::map<std::string, std::vector<double>>;
// Joins the parts of ranks. Replicas have the same part.
ValuesByName joined(const PartsByRank& parts);

// A rank's parameters in the judged training.
struct JudgedStep {
  double loss = 0;
  std::optional<double> gradient_norm = {};  // of the driving sums; empty: not compared
  bool skipped = false;
  ValuesByName gradients, values;  // gradients: this rank's parts of the exact sums over dp
  // The sums of the norms of the replicas' gradients, to which the error of their sum is relative;
  // empty: the norm of the sum.
  std::map<std::string, double> terms = {};
};

// The losses of the ten steps, those of the plain training, the bounds of their differences and the
// largest relative difference.
using CompressedTraining =
    std::tuple<std::vector<double>, std::vector<double>, std::vector<double>, double>;

// Compares the judged steps with the plain training. driving: the sums of each step. Collective
// over the group, and while the values of parameters are present.
CompressedTraining judge_driven(harness::Judge& judge, harness::Context& context,
                                const TrainingConfig& config, const Corpus& corpus,
                                Trainer& trainer, const std::vector<JudgedStep>& steps,
                                const GradientSums& driving);

}  // namespace suite
