#pragma once
// How a stage holds what backward needs: tokens cut over tp between the tensor-parallel regions,
// and activations made again instead of kept (Korthikanti et al. 2022, arXiv:2205.05198). The names
// and what may be combined are Megatron-LM's; the arithmetic is the same under all of them, and
// recomputation gives the same bits.

#include <cstddef>
#include <string_view>
#include <vector>

#include "layers/gpt_config.h"

namespace layers {

enum class RecomputeGranularity : unsigned char {
  none,
  selective,  // the scores and probabilities of core attention, in every layer
  full,       // whole layers, from what enters them
};
enum class RecomputeMethod : unsigned char {
  uniform,  // groups of num_layers: what enters a group is kept, and the group is made again
  block,    // the first num_layers of the stage, each by itself; the others keep everything
};
std::string_view name(RecomputeGranularity granularity);
std::string_view name(RecomputeMethod method);
// By name; throw std::invalid_argument naming the nearest that there is.
RecomputeGranularity recompute_granularity(std::string_view text);
RecomputeMethod recompute_method(std::string_view text);

struct ActivationOptions {
  bool sequence_parallel = false;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::none;
  RecomputeMethod recompute_method = RecomputeMethod::uniform;  // of full, as the next two
  int recompute_num_layers = 1;
  bool distribute_saved_activations = false;  // what is kept of a group is cut over tp
  bool use_flash_attn = false;     // blockwise attention, whose probabilities are never all there
  bool cpu_checkpointing = false;  // what is kept of a group is in host memory (checkpoints.h)

  // Throws std::invalid_argument naming the key, its value and what would fit: sequence_parallel or
  // distribute_saved_activations where tp is 1 or both are asked for, options of full recomputation
  // without it, recompute_num_layers beyond the layers of a stage, selective recomputation with
  // use_flash_attn.
  void validate(const GptConfig& config, int tp, int layers_of_stage) const;
  // And this when sequence_parallel is asked for and tp does not divide the tokens of a
  // micro-batch.
  void validate_rows(const GptConfig& config, int tp, int micro_batch_size) const;

  bool operator==(const ActivationOptions&) const = default;
};

// Layers [begin, end) of a stage, made again together in backward or not at all. The groups of a
// stage of so many layers, in order.
struct LayerGroup {
  std::size_t begin = 0, end = 0;
  bool recomputed = false;
  bool operator==(const LayerGroup&) const = default;
};
std::vector<LayerGroup> layer_groups(const ActivationOptions& options, std::size_t layers);

}  // namespace layers
