#pragma once
// The options of ZeRO++ (Wang et al. 2023, arXiv:2306.10209) in ZeRO stage 3, with DeepSpeed's
// names. Each sends fewer bytes between hosts.

#include <optional>

#include "machine/device/dtype.h"

namespace zero {

struct PlusPlusOptions {
  // hpZ (secondary_shards.h): the ranks of a secondary group, neighbours of dp. Up to 1: none.
  int hpz_partition_size = 1;
  bool quantized_weights = false;    // qwZ (quantized_weights.h)
  bool quantized_gradients = false;  // qgZ (quantized_gradients.h)
  // qgZ: the neighbours of dp that share a host. 0: those of a secondary group, or else all.
  int near_ranks = 0;

  bool has_secondary() const { return hpz_partition_size > 1; }
};

// Returns the ranks of the first hop of qgZ: near ranks, or all of dp if there is one hop.
int first_hop(const PlusPlusOptions& options, int dp);

// The facts of a step that the options depend on.
struct PlusPlusCase {
  int stage = 3, dp = 1, ep = 1;
  bool offloads_values = false;
  machine::Dtype values = machine::Dtype::float32, gradients = machine::Dtype::float32;
  std::optional<machine::Dtype> wire = {};  // communication_data_type
  double predivision = 1;                   // of gradients
};
// Throws std::invalid_argument for options that the case does not support.
void check(const PlusPlusOptions& options, const PlusPlusCase& of);

}  // namespace zero
