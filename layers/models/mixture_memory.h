#pragma once
// The memory of a block with experts, for gpt_memory.cpp: its sizes in the notation of moe_cost.h,
// and the rows of the table of tensors. A shared expert that is split over t = tp ranks has F/t and
// I/t columns of all t T rows.

#include <cstddef>
#include <vector>

#include "layers/models/gpt_cost.h"
#include "layers/models/memory_rows.h"

namespace layers {

struct Mixture {
  bool present, all_to_all = true, arranges = false, pads = false, sums_loads = false;
  std::size_t P = 1, T = 0, N = 0, k = 0, S = 0, R = 0, h = 0, f = 0, i = 0, E = 0, A = 0, B = 0;
  std::size_t F = 0, I = 0, T_shared = 0;  // of the shared expert: own columns, and rows

  Mixture(const GptConfig& config, const StageCase& stage, std::size_t block);
};

// Tensors of the block around the experts, in bytes: own rows; statistics of a norm; a gradient
// after dropout, or 0; a gathered copy of all rows, or 0.
struct MixtureBorder {
  std::size_t own = 0, statistics = 0, dropped = 0, gathered = 0;
};
std::vector<Row> mixture_rows(const Mixture& m, const MixtureBorder& block);

}  // namespace layers
