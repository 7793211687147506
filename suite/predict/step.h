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
#include "suite/predict/zero/data_parallel.h"

namespace suite::predict {

struct Prediction {
  double step_s = 0;
  double low_s = 0, high_s = 0;  // interval (published.h)
  int slowest_stage = 0;
  Seconds stage;  // of the slowest stage, over all its micro-batches; its recomputation included
  double recompute_s = 0;  // of it
  double bubble_s = 0;     // idle time of the slowest stage
  std::vector<GroupTime> groups;
  double optimizer_s = 0, offload_s = 0;
  double before_freeze_s = 0;  // a step before the freeze_step of a 1-bit optimizer; 0: no other
  double checkpoint_s = 0;     // to write one, not part of the step; 0: unknown storage
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

// config: complete (resolve.h). Of a 1-bit optimizer the step is one after its freeze_step, with
// the time of one before it. Throws std::invalid_argument that names the key for a configuration
// that is not predicted (counted_keys.h).
Prediction predict_step(const TrainingConfig& config, const Cluster& cluster,
                        const Software& software, Pipeline mode = Pipeline::simulated);

}  // namespace suite::predict
