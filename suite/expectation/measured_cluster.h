#pragma once
// A cluster file from the records of runs: the constants with which the prediction's own formulas
// come nearest to the measured times.
//
//   const MeasuredCluster measured = measure_cluster(runs, read_cluster("two_cores"));
//   measured.cluster; text(measured);
//
//   gemm                      peaks, gemm_fraction, gemm_depth, kernel_us
//   memory_bandwidth          gpu.bandwidth_gb_s; on a host also host.bandwidth_gb_s
//   link_matrix               gpus_per_node; latency and bandwidth if no collective was measured
//   all_reduce, all_gather, … latency and bandwidth within a node and between nodes
//   host_device_bandwidth     host.pcie_gb_s
//
// A GPU keeps the bandwidths of its specification (`like`), and gets the fraction that was
// measured. A host has no specification, so its bandwidths are the measured ones. Records of ranks
// that share a GPU or a core do not show the speed of either, and are left out.

#include <optional>
#include <string>
#include <vector>

#include "harness/record/run_json.h"
#include "suite/predict/cluster.h"

namespace suite {

struct MeasuredCluster {
  predict::Cluster cluster;
  // A value of the file and its source: records, or the cluster that gave it for want of them.
  struct Value {
    std::string key, from;
    bool measured = false;
  };
  std::vector<Value> values;         // in the order of the file
  std::vector<std::string> missing;  // "link_matrix between two hosts (network.*): shardmark run …"
};

// The hardware of the runs, from their environment.json.
struct MeasuredMachine {
  std::string device;            // of a rank
  std::optional<double> memory;  // bytes of a host
  bool is_gpu() const { return device.starts_with("cuda"); }
};
// Throws FileError if the directory has no environment.json of a run.
MeasuredMachine machine_of(const std::string& run_directory);

// Returns the built-in cluster whose GPU has the name in `device`, or two_cores for a host. Empty:
// none has.
std::string nearest_cluster(const std::string& device);

// like: the source of values without a record.
MeasuredCluster measure_cluster(const std::vector<harness::RunFile>& runs,
                                const MeasuredMachine& machine, const predict::Cluster& like);

std::string text(const MeasuredCluster& measured);

}  // namespace suite
