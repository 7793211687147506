#pragma once
// The time of the optimizer's kernels and of offload in a step.

#include "suite/predict/zero/data_parallel.h"

namespace suite::predict {

// Returns the bytes that the update of an element reads and writes on a GPU, by the kernels of
// zero's optimizers, without the read of its gradient. The software's own Adam is fused, with 24.
double state_bytes(const TrainingConfig::Optimizer& optimizer);

// Newton-Schulz on this rank's matrices: operations of its products, in float32.
double orthogonalization_flops(const ZeroCalls& zero, const zero::Muon& muon, bool sharded);

// Returns the elements that a rank updates. parts, dp: of data_parallel.h.
double updated_elements(const TrainingConfig& config, const std::vector<Replicated>& parts,
                        const DataParallel& dp);
double update_seconds(const TrainingConfig& config, const Cluster& cluster,
                      const Software& software, const std::vector<Replicated>& parts,
                      const DataParallel& dp);

// Returns the time of the copies of gradients, values and states, and of the update on the host.
// computing: of the step, which a delayed update overlaps. Throws std::invalid_argument for files
// without the rates of the cluster's storage.
double offload_seconds(const TrainingConfig& config, const Cluster& cluster, double elements,
                       double computing);

}  // namespace suite::predict
