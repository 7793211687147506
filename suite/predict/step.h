#pragma once
// The time of a training step on a cluster: the costs of each stage's actions (stage_time.h)
// through the simulation of the pipeline schedule that the trainer executes (pipeline/simulate.h),
// then reduction, offload and update.
//
// Ranks at the same pipeline stage have equal costs, so one rank represents them. This is exact for
// the model's equal shards, and leaves out stragglers and jitter. The chunks of a stage have equal
// costs: the embedding and the head are spread over the chunks of their stage.

#include <string>
#include <vector>

#include "suite/plan/memory_plan.h"
#include "suite/predict/stage_time.h"

namespace suite::predict {

// Communication of one group in a step, for a rank of the slowest stage.
struct GroupTime {
  std::string group;  // "tp", "cp", "ep", "dp", "pp", "embedding"
  int ranks = 1;
  bool on_network = false;  // else within a node
  double bytes = 0;         // sent
  double exposed_s = 0, hidden_s = 0;
};

struct Prediction {
  double step_s = 0;
  double low_s = 0, high_s = 0;  // interval (published.h)
  int slowest_stage = 0;
  Seconds stage;  // of the slowest stage, over all its micro-batches; its recomputation included
  double recompute_s = 0;  // of it
  double bubble_s = 0;     // idle time of the slowest stage
  std::vector<GroupTime> groups;
  double optimizer_s = 0, offload_s = 0;
  double checkpoint_s = 0;  // to write one, not part of the step; 0: unknown storage
  double model_flops = 0, hardware_flops = 0;  // of a step, over all GPUs
  double tokens = 0;
  double mfu = 0, hfu = 0;
  double joules = 0;  // of a step; 0: unknown
  configuration::Held held;
  double gpu_memory = 0;
  bool fits = false;

  double tokens_per_s() const { return tokens / step_s; }
  double exposed_s() const;  // communication that the step waits for
};

// lower_bound: the busiest stage without a bubble, for a search that simulates few candidates.
enum class Pipeline : unsigned char { simulated, lower_bound };

// config: complete (resolve.h). Throws std::invalid_argument for a configuration without a
// schedule, for an encoder-decoder, and for experts with tp but without sequence parallelism.
Prediction predict_step(const TrainingConfig& config, const Cluster& cluster,
                        const Software& software, Pipeline mode = Pipeline::simulated);

}  // namespace suite::predict
