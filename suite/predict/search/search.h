#pragma once
// The fastest configurations of a model on a number of GPUs, under a memory limit.
//
// The grid is TP x CP x PP x ZeRO stage x micro-batch x recomputation x offload x schedule; DP
// takes the other GPUs. Pipelines have ZeRO stage 0 or 1, as in Megatron-LM and DeepSpeed. A step
// is never shorter than the computation of its busiest stage, so candidates are simulated in the
// order of this bound until it exceeds the worst of the best: the result is that of simulating the
// whole grid.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "suite/predict/scaling_figures.h"
#include "suite/predict/step.h"

namespace suite::predict {

struct Choice {
  TrainingConfig config;
  Prediction prediction;
  // Returns the largest part of the step that is not matrix products: "pipeline bubble 12 %".
  std::string limit() const;
};

struct Found {
  std::vector<Choice> best;  // the fastest first
  std::size_t candidates = 0, fitting = 0, simulated = 0;
};

// base: the model, precision, global batch and further options of all candidates. TP has at most
// most_tp ranks, by default the GPUs of a node.
std::vector<TrainingConfig> grid(const TrainingConfig& base, const Cluster& cluster, int gpus,
                                 int most_tp);
std::vector<TrainingConfig> grid(const TrainingConfig& base, const Cluster& cluster, int gpus);

// Candidates that fit. Each is simulated at most once.
class Candidates {
 public:
  using Condition = std::function<bool(const TrainingConfig&)>;
  // gpu_memory: bytes that a GPU may hold.
  Candidates(std::vector<TrainingConfig> all, const Cluster& cluster, const Software& software,
             double gpu_memory);
  std::vector<const TrainingConfig*> fitting() const;
  // Returns the fastest that meet a condition, or the fastest of all.
  Found fastest(std::size_t count = 10, const Condition& meets = {});
  // Returns the candidates that are faster than all others that hold no more memory. The one with
  // the smallest memory is the first.
  std::vector<Choice> pareto();

 private:
  struct Bound {
    double step_s = 0;  // at least
    std::size_t candidate = 0;
    double memory = 0;  // bytes of a GPU
  };
  const Prediction& simulated(std::size_t candidate);

  std::vector<TrainingConfig> all_;
  Cluster cluster_;
  Software software_;
  std::vector<Bound> bounds_;  // the shortest first
  std::map<std::size_t, Prediction> simulated_;
};
// Returns the figure of the step's time by the memory of a GPU.
ScalingFigure pareto_figure(const std::vector<Choice>& front);

std::string text(const Found& found);
// Return the arguments of Megatron-LM and the ds_config.json of a choice, as resolve() reads them.
std::string megatron_arguments(const TrainingConfig& config);
std::string deepspeed_config(const TrainingConfig& config);

}  // namespace suite::predict
