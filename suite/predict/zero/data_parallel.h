#pragma once
// The time and the bytes of ZeRO in a step: the reduction of gradients and the gathers of values
// over data and context parallelism, and the messages of the optimizer. The usual keys of stages 0
// to 2 have closed forms (zero/cost/cost.h); others have the calls of the declared step
// (zero_calls.h). A usual stage 3 of more than 128 layers a pipeline stage, or that no training
// step supports, has a closed form, too. Both hide communication in the same way: collectives run
// one after another, also over different links.

#include <optional>
#include <string>
#include <vector>

#include "suite/predict/collective_time.h"
#include "suite/predict/stage_time.h"
#include "suite/predict/zero/zero_calls.h"

namespace suite::predict {

// Communication of one group in a step, for a rank of the slowest stage.
struct GroupTime {
  std::string group;  // "tp", "cp", "ep", "dp", "pp", "embedding", "hpz", "qgz_near", …
  int ranks = 1;
  bool on_network = false;  // else within a node
  double bytes = 0;         // sent
  double exposed_s = 0, hidden_s = 0;
};
// Adds to the group of the same name, if there is one.
void add(std::vector<GroupTime>& groups, const GroupTime& more);

// Parameters of a rank, and the ranks that hold the same ones: of an expert, those with its
// replicas (layers/experts/expert_groups.h).
struct Replicated {
  double parameters;
  int ranks;
  Spread group;
  double shard() const { return parameters / ranks; }
};
std::vector<Replicated> replicated(const TrainingConfig& config, const Cluster& cluster);
// Returns the elements that a rank updates.
double updated_elements(const TrainingConfig& config, const std::vector<Replicated>& parts);

struct DataParallel {
  std::optional<ZeroCalls> declared;  // if the closed forms do not count a key
  std::vector<GroupTime> groups;
  double exposed_s() const;
};
// stage: of the pipeline, and the time of its micro-batches.
DataParallel data_parallel(const TrainingConfig& config, const Cluster& cluster,
                           const Software& software, int stage, const StageSeconds& seconds,
                           const std::vector<Replicated>& parts);

}  // namespace suite::predict
