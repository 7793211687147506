#include "layers/models/activation_options.h"

#include <algorithm>
#include <numeric>

#include "machine/base/names.h"
#include "machine/base/reject.h"

namespace layers {

std::string_view name(RecomputeGranularity granularity) {
  constexpr std::string_view names[] = {"none", "selective", "full"};
  return names[static_cast<std::size_t>(granularity)];
}

std::string_view name(RecomputeMethod method) {
  return method == RecomputeMethod::uniform ? "uniform" : "block";
}

RecomputeGranularity recompute_granularity(std::string_view text) {
  using enum RecomputeGranularity;
  return machine::named("recompute-granularity", text, {none, selective, full});
}

RecomputeMethod recompute_method(std::string_view text) {
  return machine::named("recompute-method", text,
                        {RecomputeMethod::uniform, RecomputeMethod::block});
}

void ActivationOptions::validate(const GptConfig& config, int tp, int layers_of_stage) const {
  if (fused_epilogues && config.disable_bias_linear)
    machine::reject("fused-epilogues requires a model with biases (got disable-bias-linear)");
  if (config.encoder_decoder() && use_flash_attn)
    machine::reject(
        "use-flash-attn requires architecture decoder or encoder, because blockwise attention has "
        "no relative bias (got encoder-decoder)");
  if (config.encoder_decoder() && distribute_saved_activations)
    machine::reject(
        "distribute-saved-activations requires architecture decoder or encoder, because ranks of "
        "tp have different tables of the relative bias (got encoder-decoder)");
  if (sequence_parallel && tp == 1)
    machine::reject("sequence-parallel requires tp 2 or more (got 1)");
  const bool full = recompute_granularity == RecomputeGranularity::full;
  const auto requires_full = [&](bool asked, std::string_view key) {
    if (asked && !full)
      machine::reject("{} requires recompute-granularity full (got {})", key,
                      name(recompute_granularity));
  };
  requires_full(recompute_method != RecomputeMethod::uniform, "recompute-method block");
  requires_full(recompute_num_layers != 1,
                fmt::format("recompute-num-layers {}", recompute_num_layers));
  requires_full(distribute_saved_activations, "distribute-saved-activations");
  requires_full(cpu_checkpointing, "cpu-checkpointing");
  if (distribute_saved_activations && tp == 1)
    machine::reject("distribute-saved-activations requires tp 2 or more (got 1)");
  if (distribute_saved_activations && sequence_parallel)
    machine::reject(
        "distribute-saved-activations does not support sequence-parallel; leave out one of the "
        "two");
  if (recompute_num_layers < 1 || recompute_num_layers > layers_of_stage)
    machine::reject("recompute-num-layers is {}; expected 1 to {}, the layers of a stage",
                    recompute_num_layers, layers_of_stage);
  if (contiguous_memory_optimization && !distribute_saved_activations && !cpu_checkpointing)
    machine::reject(
        "contiguous-checkpoints requires distribute-saved-activations or cpu-checkpointing, "
        "because other checkpoints are no copies");
  const auto checkpoints = std::ranges::count_if(
      layer_groups(*this, static_cast<std::size_t>(layers_of_stage)), &LayerGroup::recomputed);
  if (number_checkpoints > 0 && number_checkpoints < checkpoints)
    machine::reject("number-checkpoints is {}; expected at least {}, those of a stage",
                    number_checkpoints, checkpoints);
}

void ActivationOptions::validate_rows(int sequence, int tp, int micro_batch_size) const {
  const std::int64_t rows = std::int64_t{micro_batch_size} * sequence;
  if (!sequence_parallel || rows % tp == 0) return;
  const int unit = tp / std::gcd(sequence, tp);
  const int nearest = std::max(1, (micro_batch_size + unit / 2) / unit) * unit;
  machine::reject(
      "sequence-parallel requires tokens that tp {} divides (got micro-batch-size {} x sequence {} "
      "= {}; example: micro-batch-size {})",
      tp, micro_batch_size, sequence, rows, nearest);
}

std::vector<LayerGroup> layer_groups(const ActivationOptions& options, std::size_t layers) {
  std::vector<LayerGroup> groups;
  if (options.recompute_granularity != RecomputeGranularity::full) return {{0, layers, false}};
  const bool uniform = options.recompute_method == RecomputeMethod::uniform;
  const auto num_layers = static_cast<std::size_t>(options.recompute_num_layers);
  const std::size_t recomputed = uniform ? layers : num_layers;
  const std::size_t step = uniform ? num_layers : 1;
  for (std::size_t begin = 0; begin < recomputed; begin += step)
    groups.push_back({begin, std::min(begin + step, recomputed), true});
  if (recomputed < layers) groups.push_back({recomputed, layers, false});
  return groups;
}

}  // namespace layers
