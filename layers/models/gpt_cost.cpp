#include "layers/models/gpt_cost.h"

#include <algorithm>

namespace layers {
namespace {

// Collectives of [n, h], counted by kind.
class Calls {
 public:
  Calls(const GptConfig& config, const StageCase& stage)
      : config_(config), stage_(stage), n_(stage.tokens(config)), h_(config.hidden) {}

  // Count the collectives at the entries and at the exits of `regions` tensor-parallel regions. The
  // backward of an exit counts as an entry.
  void enter(int regions) {
    if (stage_.options.sequence_parallel) gathers_ += regions;
  }
  void leave(int regions) { (stage_.options.sequence_parallel ? scatters_ : reduces_) += regions; }
  void gather(int calls) { gathers_ += calls; }
  void reduce_row_values(int calls) { row_values_ += calls; }
  void attend(int forwards, int backwards) {
    forwards_ += forwards;
    backwards_ += backwards;
  }

  std::vector<CollectiveCalls> take() const {
    using machine::Operation;
    const auto accumulator = stage_.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
    std::vector<CollectiveCalls> calls{
        {"tp", Operation::all_reduce, stage_.dtype, stage_.tp, n_ * h_, reduces_},
        {"tp", Operation::all_gather, stage_.dtype, stage_.tp, n_ * h_, gathers_},
        {"tp", Operation::reduce_scatter, stage_.dtype, stage_.tp, n_ * h_, scatters_},
        {"tp", Operation::all_reduce, accumulator, stage_.tp, n_, row_values_},
    };
    std::erase_if(calls, [this](const auto& one) { return stage_.tp == 1 || one.calls == 0; });
    if (stage_.cp.ranks == 1) return calls;
    const ContextCost cost = core_attention_cost(config_, stage_);
    for (const auto& [pass, times] :
         {std::pair(&cost.forward, forwards_), {&cost.backward, backwards_}})
      for (CollectiveCalls call : pass->calls) {
        call.calls *= times;
        if (times > 0) calls.push_back(call);
      }
    return calls;
  }

 private:
  const GptConfig& config_;
  const StageCase& stage_;
  std::int64_t n_, h_;
  int reduces_ = 0, gathers_ = 0, scatters_ = 0, row_values_ = 0;
  int forwards_ = 0, backwards_ = 0;  // of core attention
};

// Elements of the matrices of a layer.
std::int64_t layer_weights(const GptConfig& config) {
  const std::int64_t h = config.hidden;
  return h * config.qkv() + h * h + (config.swiglu ? 3 : 2) * config.ffn() * h;
}

// Blocks [begin, end) of a model, by stack. A decoder alone has only `other` blocks.
struct Blocks {
  int other = 0, decoder = 0;  // decoder: of an encoder-decoder, with cross attention
  Blocks(const GptConfig& config, int begin, int end)
      : decoder(config.encoder_decoder()
                    ? std::max(0, end - std::max(begin, config.encoder_layers()))
                    : 0) {
    other = end - begin - decoder;
  }
  // Entries and exits of tensor-parallel regions in forward. Queries of cross attention, and keys
  // and values, enter separately.
  int entries() const { return 2 * other + 4 * decoder; }
  int exits() const { return 2 * other + 3 * decoder; }
};

Blocks blocks_of(const GptConfig& config, const StageCase& stage) {
  const BlockRange range = stage.stage.blocks(config);
  return {config, range.begin, range.end};
}
Blocks blocks_of(const GptConfig& config, const StageCase& stage, const LayerGroup& group) {
  const int first = stage.stage.blocks(config).begin;
  return {config, first + static_cast<int>(group.begin), first + static_cast<int>(group.end)};
}

// Lookups of the embedding.
int lookups(const GptConfig& config) { return config.encoder_decoder() ? 2 : 1; }

int layers_of(const GptConfig& config, const StageCase& stage) {
  return stage.stage.blocks(config).size();
}

int recomputed_layers(const GptConfig& config, const StageCase& stage) {
  std::size_t count = 0;
  for (const LayerGroup& group :
       layer_groups(stage.options, static_cast<std::size_t>(layers_of(config, stage))))
    if (group.recomputed) count += group.end - group.begin;
  return static_cast<int>(count);
}

}  // namespace

ContextCost core_attention_cost(const GptConfig& config, const StageCase& stage) {
  return context_cost({.ranks = stage.cp.ranks,
                       .rank = stage.cp.rank,
                       .options = stage.cp.options,
                       .dtype = stage.dtype,
                       .sequences = stage.sequences,
                       .sequence = config.sequence,
                       .heads = config.heads / stage.tp,
                       .kv_heads = config.query_groups() / stage.tp,
                       .head = config.head()});
}

std::int64_t parameters_count(const GptConfig& config) {
  return stage_parameters_count(config, {});
}

std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage) {
  const std::int64_t h = config.hidden, t = stage.tp, f = config.ffn();
  const bool tied = !config.untie_embeddings_and_output_weights;
  const std::int64_t norm = config.normalization == Normalization::rms_norm ? h : 2 * h;
  const std::int64_t table = config.vocabulary / t * h;
  const std::int64_t weights = layer_weights(config) / t;
  const std::int64_t biases =
      config.disable_bias_linear ? 0 : config.qkv() / t + (config.swiglu ? 2 : 1) * f / t + 2 * h;
  std::int64_t count = layers_of(config, stage) * (weights + biases + 2 * norm);
  if (stage.stage.first()) count += table + (config.learned_positions() ? config.sequence * h : 0);
  if (stage.stage.last()) count += norm + (tied && stage.stage.first() ? 0 : table);
  if (config.encoder_decoder()) {
    const BlockRange range = stage.stage.blocks(config);
    const std::int64_t cross_biases = config.disable_bias_linear ? 0 : 3 * h / t + h;
    count += blocks_of(config, stage).decoder * (4 * h * h / t + cross_biases + norm);
    const int end = config.encoder_layers() - 1;  // the block with the encoder's last norm
    if (range.begin <= end && end < range.end) count += norm;
    if (stage.stage.first()) count += 2 * config.heads / t * relative_buckets_count;
  }
  if (config.encoder()) {
    if (stage.stage.first()) count += 2 * h;
    if (stage.stage.last()) count += h * h + h + norm + config.vocabulary / t;
  }
  return count;
}

double model_flops(const GptConfig& config, std::int64_t tokens) {
  const double h = config.hidden, layers = config.layers;
  const double linear = layers * static_cast<double>(layer_weights(config)) +
                        h * config.vocabulary + (config.encoder() ? h * h : 0);
  // In units of the causal half. A pair of an encoder's and a decoder's layer has 2 + 1 + 2.
  const double halves = config.encoder_decoder() ? 2.5 : config.encoder() ? 2 : 1;
  const double core_attention = halves * layers * h * config.sequence;
  const double cross = config.encoder_decoder() ? layers / 2 * 4 * h * h : 0;
  return 3 * 2 * static_cast<double>(tokens) * (linear + cross + core_attention);
}

std::int64_t boundary_rows(const GptConfig& config, const StageCase& stage) {
  const std::int64_t own = stage.tokens(config) / (stage.options.sequence_parallel ? stage.tp : 1);
  if (!config.encoder_decoder()) return own;
  const std::int64_t tables = 2 * config.heads / stage.tp * relative_buckets_count;
  return 2 * own + (tables + config.hidden - 1) / config.hidden;
}

std::size_t boundary_bytes(const GptConfig& config, const StageCase& stage) {
  return static_cast<std::size_t>(boundary_rows(config, stage) * config.hidden) *
         machine::size_of(stage.dtype);
}

std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage) {
  Calls calls(config, stage);
  if (stage.stage.first()) calls.leave(lookups(config));
  calls.enter(blocks_of(config, stage).entries());
  calls.leave(blocks_of(config, stage).exits());
  calls.attend(layers_of(config, stage), 0);
  if (stage.stage.last()) {
    calls.enter(1);
    calls.reduce_row_values(3);
  }
  return calls.take();
}

// In backward, a gradient leaves a region at the entry of its value.
std::vector<CollectiveCalls> backward_input_calls(const GptConfig& config, const StageCase& stage) {
  Calls calls(config, stage);
  if (stage.stage.last()) calls.leave(1);
  calls.enter(blocks_of(config, stage).exits());
  calls.leave(blocks_of(config, stage).entries());
  calls.attend(recomputed_layers(config, stage), layers_of(config, stage));
  for (const LayerGroup& group :
       layer_groups(stage.options, static_cast<std::size_t>(layers_of(config, stage)))) {
    if (!group.recomputed) continue;
    const bool callers = group.begin == 0 && !stage.stage.first();
    if (stage.options.distribute_saved_activations && !callers) calls.gather(1);
    calls.enter(blocks_of(config, stage, group).entries());
    calls.leave(blocks_of(config, stage, group).exits());
  }
  return calls.take();
}

std::vector<CollectiveCalls> backward_weights_calls(const GptConfig& config,
                                                    const StageCase& stage) {
  Calls calls(config, stage);
  if (stage.stage.last()) calls.enter(1);
  calls.enter(blocks_of(config, stage).entries());
  if (stage.stage.first()) calls.enter(lookups(config));
  return calls.take();
}

ContextMessages forward_messages(const GptConfig& config, const StageCase& stage) {
  ContextMessages all;
  if (stage.cp.ranks > 1)
    add(all, core_attention_cost(config, stage).forward.messages, layers_of(config, stage));
  return all;
}

ContextMessages backward_input_messages(const GptConfig& config, const StageCase& stage) {
  ContextMessages all;
  if (stage.cp.ranks == 1) return all;
  const ContextCost cost = core_attention_cost(config, stage);
  add(all, cost.forward.messages, recomputed_layers(config, stage));
  add(all, cost.backward.messages, layers_of(config, stage));
  return all;
}

}  // namespace layers
