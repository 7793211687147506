#pragma once
// A cluster as the prediction sees it: one kind of GPU, two levels of links, and the storage below.
// A TOML file gives it. clusters/ has examples, which are also known by name.
//
//   const Cluster cluster = read_cluster("dgx_h100");   // a name, or the path of a file
//
// Units are in the names of the keys; here everything is in bytes, seconds and FLOP/s. Bandwidths
// are of one GPU and one direction.

#include <string>
#include <string_view>
#include <vector>

#include "machine/device/dtype.h"

namespace suite::predict {

struct Gpu {
  std::string name;
  double float32 = 0, half = 0;   // dense peaks in FLOP/s; half: float16 and bfloat16
  double fp8 = 0;                 // of products of 8-bit floats; 0: the GPU has none, or unknown
  double memory = 0;              // bytes
  double bandwidth = 0;           // of its memory, as the vendor states it
  double bandwidth_fraction = 1;  // that a streaming kernel reaches
  // A product of [m, k] and [k, n] runs at peak * gemm_fraction * k / (k + gemm_depth) * (share of
  // the multiprocessors that the last wave of tiles fills).
  double gemm_fraction = 1, gemm_depth = 0;
  int multiprocessors = 1, tile_rows = 128, tile_columns = 256;
  double kernel_s = 0;  // between two kernels
  double watts = 0;     // of a GPU with its share of the node; 0: unknown

  double peak(machine::Dtype dtype) const { return machine::size_of(dtype) < 4 ? half : float32; }
};

struct Links {
  double latency_s = 0;         // of one message
  double bandwidth = 0;         // of one adapter, as the vendor states it
  double fraction = 1;          // that large collectives reach
  int shared_by = 1;            // GPUs that share an adapter
  double oversubscription = 1;  // of the tree above the nodes
  double rate() const { return bandwidth * fraction / shared_by / oversubscription; }
};

struct Cluster {
  std::string name, source;
  Gpu gpu;
  int gpus_per_node = 1;  // that the links of a node join
  Links node, network;
  double host_memory = 0, host_bandwidth = 0;  // of a node
  double pcie = 0;                             // between a GPU and its host
  double nvme_read = 0, nvme_write = 0;        // of a node; 0: no storage
};

// Returns the names of the built-in clusters.
std::vector<std::string> cluster_names();
// Throws FileError `FILE:LINE: …` for an unknown key (naming the nearest), a missing key and a
// value out of its range.
Cluster read_cluster(const std::string& name_or_path);
Cluster parse_cluster(const std::string& file, std::string_view toml);
// A key of a cluster file with its value as text, in the order of the file.
struct ClusterValue {
  std::string_view key, about;
  std::string value;
};
std::vector<ClusterValue> values(const Cluster& cluster);
// Lists every key with its value, unit and meaning.
std::string text(const Cluster& cluster);
// Returns a file that parse_cluster reads back to the same cluster.
std::string cluster_file(const Cluster& cluster);
// Lists the keys of a cluster file for the documentation, as a table.
std::string cluster_keys_table();

}  // namespace suite::predict
