#pragma once
// The storage of a stage's activations for backward: tokens split over tp between the
// tensor-parallel regions, and activations recomputed instead of kept (Korthikanti et al. 2022,
// arXiv:2205.05198). Names and valid combinations are Megatron-LM's. Only fused_epilogues changes
// the arithmetic, by one rounding less, and tp_comm the order of sums. Recomputation gives the same
// bits.

#include <cstddef>
#include <string_view>
#include <vector>

#include "layers/gpt_config.h"
#include "layers/tp_comm_overlap.h"

namespace layers {

enum class RecomputeGranularity : unsigned char {
  none,
  selective,  // core attention, in every layer; over cp with its messages
  full,       // whole layers, from their input
};
enum class RecomputeMethod : unsigned char {
  uniform,  // groups of num_layers: the input of a group is kept, and the group is recomputed
  block,    // the first num_layers of the stage, one by one; the other layers keep all tensors
};
std::string_view name(RecomputeGranularity granularity);
std::string_view name(RecomputeMethod method);
// Return the value of a name. Throw std::invalid_argument that names the nearest.
RecomputeGranularity recompute_granularity(std::string_view text);
RecomputeMethod recompute_method(std::string_view text);

struct ActivationOptions {
  bool sequence_parallel = false;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  RecomputeMethod recompute_method = RecomputeMethod::uniform;  // for full, like the next two
  int recompute_num_layers = 1;
  bool distribute_saved_activations = false;  // the kept input of a group is split over tp
  // Blockwise attention without stored probabilities. Attention with a sparse layout is blockwise
  // without it, too.
  bool use_flash_attn = false;
  bool cpu_checkpointing = false;  // the kept input of a group is in host memory (checkpoints.h)
  // The kept inputs of a micro-batch are adjacent, in one allocation (M_D of ZeRO-R). It has room
  // for number_checkpoints inputs, or with 0 for those of the stage.
  bool contiguous_memory_optimization = false;
  int number_checkpoints = 0;
  bool fused_epilogues = false;  // bias and GELU are part of cuBLASLt's products
  TpCommOverlap tp_comm{};       // communication over tp during products

  bool blockwise(const GptConfig& config) const { return use_flash_attn || config.sparse.on(); }

  // Throws std::invalid_argument that names the key, its value and a valid value. sequence_parallel
  // and distribute_saved_activations require tp 2 or more and exclude each other; options of full
  // recomputation require granularity full; recompute_num_layers is at most the layers of a stage;
  // contiguous_memory_optimization requires copies (distributed or on the host), and
  // number_checkpoints at least as many as a stage has; fused_epilogues requires biases.
  void validate(const GptConfig& config, int tp, int layers_of_stage) const;
  // Throws std::invalid_argument if sequence_parallel is set and tp does not divide the tokens of a
  // micro-batch. sequence: the rows of a sequence on a context-parallel rank.
  void validate_rows(int sequence, int tp, int micro_batch_size) const;

  bool operator==(const ActivationOptions&) const = default;
};

// Layers [begin, end) of a stage, which backward recomputes together or not at all. layer_groups
// returns the groups of a stage of `layers` layers, in order.
struct LayerGroup {
  std::size_t begin = 0, end = 0;
  bool recomputed = false;
  bool operator==(const LayerGroup&) const = default;
};
std::vector<LayerGroup> layer_groups(const ActivationOptions& options, std::size_t layers);

}  // namespace layers
