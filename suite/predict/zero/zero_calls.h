#pragma once
// The collectives of ZeRO and of the optimizer in one step of a rank, as the volume oracle expects
// them: the parameters are declared as the training step declares them (plan/declared_stage.h), and
// zero/cost/cost.h counts. data_parallel.h has closed forms for the usual keys of stages 0 to 2,
// which need no declaration and are exact but for padding and the norm's doubles.

#include <string_view>
#include <vector>

#include "collectives/communicator/calls.h"
#include "suite/plan/declared_stage.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/software.h"

namespace suite::predict {

// Returns whether a key selects messages that the closed forms of data_parallel.h do not count:
// ZeRO++, gradient-compression, LAMB, Muon, Adafactor, 1-bit optimizers, frozen parameters, and
// stage 3's thresholds.
bool sends_by_declaration(const TrainingConfig& config);

// Returns whether the training step supports the configuration.
bool is_step(const TrainingConfig& config, const Cluster& cluster, const Software& software);

struct ZeroCalls {
  configuration::DeclaredStage declared;
  zero::StepOptions options;  // with the rule of the step that is predicted
  std::vector<collectives::CollectiveCalls> calls = {};
  int dp_rank = 0;  // with Muon one that orthogonalizes the most elements
};
// config: complete (resolve.h). Of a 1-bit optimizer the calls are those of a step after its
// freeze_step. Throws std::invalid_argument for a configuration that no training step supports.
ZeroCalls zero_calls(const TrainingConfig& config, const Cluster& cluster, const Software& software,
                     int stage);

// Throws std::invalid_argument for a pattern of `freeze` without a parameter in the whole model, as
// a trainer does, and if nothing is left to train.
void check_frozen(const TrainingConfig& config);
// The part of the elements of a stage's matrices that are trained, and whether the matrix of the
// head is.
struct TrainedParts {
  double of_blocks = 1;
  bool head = true;
};
TrainedParts trained_parts(const TrainingConfig& config, int stage);

// Returns the ranks of a group of the training step: "tp", "dp", "edp", "hpz", "qgz_near", …
Spread spread_of(const TrainingConfig& config, const Cluster& cluster, std::string_view group,
                 int ranks);

// Returns the bytes that a rank sends in such calls.
double sent_bytes(const TrainingConfig& config, const collectives::CollectiveCalls& calls);

}  // namespace suite::predict
