#pragma once
// The time that a cluster promises for a case of a unit, by the formulas of predict (--expect).
//
//   const Expectation expectation(read_cluster("dgx_h100"), on_gpu, {});
//   expectation.promise(record).expected_s;   // 0: there is no prediction for this case
//
//   gemm                     roofline of the product
//   memory_bandwidth         bytes at the bandwidth
//   host_device_bandwidth    bytes over PCIe, for pinned memory
//   collectives              the case's own plan, step by step over the links of its pairs of
//                            ranks; for a library or `auto` the fastest of the usual algorithms
//   steps of a training      predict_step, without overlap unless the case overlaps
//
// The first ranks fill the first node. A transport that the cluster file does not describe has no
// expectation: host memory between GPUs, MPI within a host.

#include <map>
#include <optional>
#include <string>

#include "harness/run/run.h"
#include "suite/configuration/training_config.h"
#include "suite/predict/cluster.h"

namespace suite {

class Expectation {
 public:
  // configured: of --config and --megatron-arguments, for keys that are not axes.
  Expectation(predict::Cluster cluster, bool on_gpu, std::optional<TrainingConfig> configured);
  harness::Promise promise(const harness::Record& record) const;

 private:
  predict::Cluster cluster_, peaks_;
  bool on_gpu_;
  std::optional<TrainingConfig> configured_;
};

// Returns the cluster with its peaks only: all of each bandwidth and of each rate, no latency.
predict::Cluster peaks_of(predict::Cluster cluster);

using Floors = std::map<std::string, double>;  // by kind_of_case
// 0.8 for steps, computation and bandwidth. Short messages have no floor, because no specification
// states their start-up.
Floors default_floors();
// Reads "0.9" (for each kind of default_floors) or "step=0.7,message=0.5". Throws UsageError.
void read_floors(const std::string& text, Floors& floors);

}  // namespace suite
