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
  if (sequence_parallel && tp == 1)
    machine::reject(
        "sequence-parallel: there is none without tensor parallelism; tp is 1, the nearest that "
        "has one is 2");
  const bool full = recompute_granularity == RecomputeGranularity::full;
  const auto only_of_full = [&](bool asked, std::string_view key) {
    if (asked && !full)
      machine::reject("{} is of recompute-granularity full, which is {}", key,
                      name(recompute_granularity));
  };
  only_of_full(recompute_method != RecomputeMethod::uniform, "recompute-method block");
  only_of_full(recompute_num_layers != 1,
               fmt::format("recompute-num-layers {}", recompute_num_layers));
  only_of_full(distribute_saved_activations, "distribute-saved-activations");
  only_of_full(cpu_checkpointing, "cpu-checkpointing");
  if (distribute_saved_activations && (sequence_parallel || tp == 1))
    machine::reject("distribute-saved-activations: {}",
                    tp == 1
                        ? "there is nothing to cut over; tp is 1, the nearest that fits is 2"
                        : "with sequence-parallel they are cut already; leave out one of the two");
  if (use_flash_attn && recompute_granularity == RecomputeGranularity::selective)
    machine::reject(
        "recompute-granularity selective: with use-flash-attn there are no probabilities to make "
        "again; leave out one of the two");
  if (use_flash_attn && config.attention_dropout > 0)
    machine::reject(
        "attention-dropout {}: blockwise attention, use-flash-attn, drops nothing; leave out one "
        "of the two",
        config.attention_dropout);
  if (recompute_num_layers < 1 || recompute_num_layers > layers_of_stage)
    machine::reject(
        "recompute-num-layers is {}: a stage has {} layers; the nearest that fits is {}",
        recompute_num_layers, layers_of_stage,
        std::clamp(recompute_num_layers, 1, layers_of_stage));
}

void ActivationOptions::validate_rows(const GptConfig& config, int tp, int micro_batch_size) const {
  const int rows = micro_batch_size * config.sequence;
  if (!sequence_parallel || rows % tp == 0) return;
  const int unit = tp / std::gcd(config.sequence, tp);
  const int nearest = std::max(1, (micro_batch_size + unit / 2) / unit) * unit;
  machine::reject(
      "sequence-parallel: micro-batch-size {} x sequence {} = {} tokens, which tp {} does not "
      "divide; the nearest micro-batch-size whose tokens it divides is {}",
      micro_batch_size, config.sequence, rows, tp, nearest);
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
