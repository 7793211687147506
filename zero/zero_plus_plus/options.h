#pragma once
// The options of ZeRO++ (Wang et al. 2023, arXiv:2306.10209) in ZeRO stage 3, with DeepSpeed's
// names. Each sends fewer bytes between hosts.

#include "machine/device/dtype.h"

namespace zero {

struct PlusPlusOptions {
  // hpZ (secondary_shards.h): the ranks of a secondary group, neighbours of dp. Up to 1: none.
  int hpz_partition_size = 1;

  bool has_secondary() const { return hpz_partition_size > 1; }
};

// The facts of a step that the options depend on.
struct PlusPlusCase {
  int stage = 3, dp = 1, ep = 1;
  bool offloads_values = false;
};
// Throws std::invalid_argument for options that the case does not support.
void check(const PlusPlusOptions& options, const PlusPlusCase& of);

}  // namespace zero
