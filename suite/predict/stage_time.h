#pragma once
// The time of one micro-batch through the layers of a pipeline stage, by kind.

#include <string_view>
#include <vector>

#include "layers/experts/moe_cost.h"
#include "layers/models/gpt_cost.h"
#include "suite/configuration/training_config.h"
#include "suite/predict/cluster.h"
#include "suite/predict/software.h"

namespace suite::predict {

struct Seconds {
  double gemm = 0, attention = 0, memory = 0;  // computing
  double tp = 0, cp = 0, ep = 0, fp8 = 0;      // communication that computing waits for
  double tp_hidden = 0, cp_hidden = 0;         // communication during computing
  double computing() const { return gemm + attention + memory; }
  double total() const { return computing() + tp + cp + ep + fp8; }
  Seconds& operator+=(const Seconds& other);
  Seconds scaled(double by) const;
};

struct StageSeconds {
  Seconds forward, recompute, backward_input, backward_weights;
  double backward() const {
    return recompute.total() + backward_input.total() + backward_weights.total();
  }
  Seconds sum() const;
};

// Layers of a stage.
struct LayerCount {
  double dense = 0, with_experts = 0;
};
// Returns the layers [begin, end) of a stage.
LayerCount count_layers(const TrainingConfig& config, int stage, int begin, int end);
LayerCount count_layers(const TrainingConfig& config, int stage);

// Returns the cases of a stage for the closed forms of layers/models/gpt_cost.h: of tensor
// parallelism, for a model with the positions of a rank (shape_of_rank), and of attention over cp.
layers::StageCase stage_case(const TrainingConfig& config, int stage);
layers::StageCase context_case(const TrainingConfig& config, int stage);
layers::GptConfig shape_of_rank(const TrainingConfig& config);

// Returns one layer with experts, by the closed forms of layers/experts/moe_cost.h: all experts get
// the same number of tokens.
layers::MoeCase mixture_case(const TrainingConfig& config);
// Returns those of the calls that more than one rank of this group makes.
std::vector<collectives::CollectiveCalls> calls_over(
    std::string_view group, std::vector<collectives::CollectiveCalls> calls);
// Returns the bytes that a rank sends to the other ranks of the experts in one pass of a layer.
double expert_bytes(const layers::MoePass& pass);

// config: complete (resolve.h). stage: of config.degrees.pp.
StageSeconds stage_seconds(const TrainingConfig& config, const Cluster& cluster,
                           const Software& software, int stage);

}  // namespace suite::predict
