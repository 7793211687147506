#pragma once
// The axes that the units of a mixture of experts share, by the names of Megatron-LM's arguments.
//
// Every rank has seq-length tokens. ranks = ep x etp x edp, in the order of
// layers/experts/expert_groups.h.

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "layers/experts/expert_groups.h"
#include "layers/experts/routing.h"
#include "layers/moe_config.h"
#include "suite/reference/moe_reference.h"
#include "suite/reference/unit.h"

namespace suite {

struct MoeUnitCase {
  int ranks = 4;
  Transport transport{};
  Dtype dtype{};
  int ep = 4, etp = 1;
  std::string dispatcher = "alltoall";
  int num_experts = 8, topk = 2;
  std::string capacity_factor = "none";
  std::string drop_policy = "probs";
  bool pads = false;
  int seq_length = 64, hidden_size = 64;
  // Axes of moe_layer only.
  bool pre_softmax = true;
  std::string load_balancing = "aux_loss";
  std::string architecture = "gpt2";  // or "llama": SwiGLU, no biases
  int ffn_hidden_size = 128, shared_size = 0;
  std::string load = "even";  // of moe_dispatch only

  layers::ExpertParallel degrees() const { return {ep, etp}; }
  // Throws UsageError for a capacity factor that is not a number.
  layers::MoeConfig config() const;
  MoeSizes reference() const;
};

// Returns the common axes, without slices.
Sweep<MoeUnitCase> moe_axes();

// Returns the rows of each rank of the group for each expert [ranks, num_experts] from the
// decisions of all its ranks, by counting: padding included.
std::vector<std::int64_t> rows_of_group(const MoeUnitCase& c,
                                        const std::vector<std::int32_t>& choices);

// Returns this rank's part of values of all tokens.
template <class T>
std::vector<T> part_of_rank(const std::vector<T>& whole, int rank, int ranks) {
  const auto size = static_cast<std::ptrdiff_t>(whole.size()) / ranks;
  return {whole.begin() + rank * size, whole.begin() + (rank + 1) * size};
}

// Figures of the routing, over all ranks.
struct MoeLoad {
  double largest_over_mean = 0, dropped_share = 0;
};
MoeLoad moe_load(const MoeUnitCase& c, const MoeReference& decisions);
inline constexpr Counter load_counters[] = {
    {"expert_load_max_over_mean", "", Better::neither, Nature::exact,
     "most choices of an expert over the mean of all experts, before drops"},
    {"dropped_share", "", Better::neither, Nature::exact,
     "choices that exceed an expert's capacity over all choices"}};

}  // namespace suite
