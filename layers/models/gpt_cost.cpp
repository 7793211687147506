#include "layers/models/gpt_cost.h"

#include <algorithm>

#include "layers/models/fp8_cost.h"
#include "layers/models/grids/grid_gpt_cost.h"

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
  // Adds the entries of the layers, in the pass `in_8_bits` if the products are in 8 bits.
  void enter_layers(int regions, Fp8Pass in_8_bits) {
    if (!stage_.fp8.on()) return enter(regions);
    of_fp8_ = fp8_calls(config_, stage_, in_8_bits);
  }
  void gather(int calls) { gathers_ += calls; }
  void reduce_row_values(int calls) { row_values_ += calls; }
  void attend(int forwards, int backwards) {
    forwards_ += forwards;
    backwards_ += backwards;
  }

  // Counts a pass of the experts of the stage's blocks [begin, end).
  void exchange(MoePass MoeCost::*pass, std::size_t begin, std::size_t end) {
    const int first = stage_.stage.blocks(config_).begin;
    for (std::size_t block = begin; block < end; ++block) {
      if (!config_.has_experts(first + static_cast<int>(block))) continue;
      const MoeCost cost = moe_cost(moe_case(config_, stage_, block));
      for (const CollectiveCalls& call : (cost.*pass).calls)
        if (call.ranks > 1) of_experts_.push_back(call);
    }
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
    calls.insert(calls.end(), of_experts_.begin(), of_experts_.end());
    calls.insert(calls.end(), of_fp8_.begin(), of_fp8_.end());
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
  std::vector<CollectiveCalls> of_experts_, of_fp8_;
};

// Returns the number of elements of the matrices of attention and of a perceptron.
std::int64_t attention_weights(const GptConfig& config) {
  const std::int64_t h = config.hidden;
  return h * config.qkv() + h * h;
}
std::int64_t mlp_weights(const GptConfig& config) {
  return std::int64_t{config.swiglu ? 3 : 2} * config.ffn() * config.hidden;
}

// Returns the keys of a query on average. Of a causal block on the diagonal a query sees a half.
double keys_of_query(const GptConfig& config) {
  if (!config.sparse.on()) {
    // A pair of an encoder's and a decoder's layer has 2 + 1 + 2 halves.
    const double halves = config.encoder_decoder() ? 2.5 : config.encoder() ? 2 : 1;
    return halves / 2 * config.sequence;
  }
  const auto [pattern, block] = config.sparse_options();
  const int heads = pattern.different_layout_per_head ? config.heads : 1;
  const SparseLayout layout = sparse_layout(pattern, heads, config.sequence / block);
  const auto present = static_cast<double>(std::ranges::count(layout.present, 1));
  return present / heads / layout.blocks * block - (config.encoder() ? 0 : block / 2.0);
}

int count_experts(const GptConfig& config, int begin, int end) {
  int count = 0;
  for (int layer = begin; layer < end; ++layer) count += config.has_experts(layer);
  return count;
}

// Blocks [begin, end) of a model, by stack. A decoder alone has only `other` blocks.
struct Blocks {
  int other = 0, decoder = 0;  // decoder: of an encoder-decoder, with cross attention
  int experts = 0;             // of `other`: without a tensor-parallel perceptron, which a shared
                               // expert is
  Blocks(const GptConfig& config, int begin, int end)
      : decoder(config.encoder_decoder()
                    ? std::max(0, end - std::max(begin, config.encoder_layers()))
                    : 0) {
    other = end - begin - decoder;
    if (config.moe.shared_expert_intermediate_size == 0)
      experts = count_experts(config, begin, end);
  }
  // Entries and exits of tensor-parallel regions in forward. Queries of cross attention, and keys
  // and values, enter separately.
  int entries() const { return 2 * other + 4 * decoder - experts; }
  int exits() const { return 2 * other + 3 * decoder - experts; }
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

// Returns the layers whose core attention is computed again.
int recomputed_attentions(const GptConfig& config, const StageCase& stage) {
  if (stage.options.recompute_granularity == RecomputeGranularity::selective)
    return layers_of(config, stage);
  return recomputed_layers(config, stage);
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

MoeCase moe_case(const GptConfig& config, const StageCase& stage, std::size_t block) {
  const ExpertRank& experts = stage.experts;
  const std::int64_t tokens =
      stage.tokens(config) / (stage.options.sequence_parallel ? stage.tp : 1);
  const MoeConfig mixture = config.mixture();
  return {mixture,
          experts.degrees,
          experts.rank,
          stage.dtype,
          tokens,
          experts.rows.empty() ? even_rows(mixture, experts.degrees, tokens) : experts.rows[block],
          (stage.options.sequence_parallel ? stage.tp : 1) * stage.cp.ranks};
}

std::int64_t parameters_count(const GptConfig& config) {
  return stage_parameters_count(config, {});
}

std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::stage_parameters_count(config, stage);
  const std::int64_t h = config.hidden, t = stage.tp, f = config.ffn();
  const bool tied = !config.untie_embeddings_and_output_weights;
  const std::int64_t norm = config.normalization == Normalization::rms_norm ? h : 2 * h;
  const std::int64_t table = config.vocabulary / t * h;
  const bool has_biases = !config.disable_bias_linear;
  const std::int64_t attention =
      attention_weights(config) / t + (has_biases ? config.qkv() / t + h : 0);
  const std::int64_t mlp =
      mlp_weights(config) / t + (has_biases ? (config.swiglu ? 2 : 1) * f / t + h : 0);
  const BlockRange blocks = stage.stage.blocks(config);
  const int with_experts = count_experts(config, blocks.begin, blocks.end);
  std::int64_t count =
      blocks.size() * (attention + 2 * norm) + (blocks.size() - with_experts) * mlp;
  if (with_experts > 0) {
    const MoeParameters moe = moe_parameters(config.mixture(), stage.experts.degrees, stage.tp);
    count += with_experts * (moe.of_experts + moe.replicated);
  }
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
  const int with_experts = config.moe_layers();
  const MoeConfig mixture = config.mixture();
  const double of_experts =
      with_experts == 0 ? 0 : moe_flops(mixture, {}, mixture.topk, 1) / (3 * 2) * with_experts;
  const double linear = layers * static_cast<double>(attention_weights(config)) +
                        (layers - with_experts) * static_cast<double>(mlp_weights(config)) +
                        of_experts + h * config.vocabulary + (config.encoder() ? h * h : 0);
  const double core_attention = 2 * layers * h * keys_of_query(config);
  const double cross = config.encoder_decoder() ? layers / 2 * 4 * h * h : 0;
  return 3 * 2 * static_cast<double>(tokens) * (linear + cross + core_attention);
}

Shape boundary_shape(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::boundary_shape(config, stage);
  const std::int64_t own = stage.tokens(config) / (stage.options.sequence_parallel ? stage.tp : 1);
  if (!config.encoder_decoder()) return {own, config.hidden};
  const std::int64_t tables = 2 * config.heads / stage.tp * relative_buckets_count;
  return {2 * own + (tables + config.hidden - 1) / config.hidden, config.hidden};
}

std::size_t boundary_bytes(const GptConfig& config, const StageCase& stage) {
  return static_cast<std::size_t>(boundary_shape(config, stage).size()) *
         machine::size_of(stage.dtype);
}

std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::forward_calls(config, stage);
  Calls calls(config, stage);
  if (stage.stage.first()) calls.leave(lookups(config));
  calls.enter_layers(blocks_of(config, stage).entries(), Fp8Pass::forward);
  calls.leave(blocks_of(config, stage).exits());
  calls.attend(layers_of(config, stage), 0);
  calls.exchange(&MoeCost::forward, 0, static_cast<std::size_t>(layers_of(config, stage)));
  if (stage.stage.last()) {
    calls.enter(1);
    calls.reduce_row_values(3);
  }
  return calls.take();
}

// In backward, a gradient leaves a region at the entry of its value.
std::vector<CollectiveCalls> backward_input_calls(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::backward_input_calls(config, stage);
  Calls calls(config, stage);
  if (stage.stage.last()) calls.leave(1);
  calls.enter_layers(blocks_of(config, stage).exits(), Fp8Pass::backward_input);
  calls.leave(blocks_of(config, stage).entries());
  calls.attend(recomputed_attentions(config, stage), layers_of(config, stage));
  calls.exchange(&MoeCost::backward_input, 0, static_cast<std::size_t>(layers_of(config, stage)));
  for (const LayerGroup& group :
       layer_groups(stage.options, static_cast<std::size_t>(layers_of(config, stage)))) {
    if (!group.recomputed) continue;
    calls.exchange(&MoeCost::forward, group.begin, group.end);
    const bool callers = group.begin == 0 && !stage.stage.first();
    if (stage.options.distribute_saved_activations && !callers) calls.gather(1);
    calls.enter(blocks_of(config, stage, group).entries());
    calls.leave(blocks_of(config, stage, group).exits());
  }
  return calls.take();
}

std::vector<CollectiveCalls> backward_weights_calls(const GptConfig& config,
                                                    const StageCase& stage) {
  if (stage.grid.on()) return grids::backward_weights_calls(config, stage);
  Calls calls(config, stage);
  if (stage.stage.last()) calls.enter(1);
  calls.enter_layers(blocks_of(config, stage).entries(), Fp8Pass::backward_weights);
  if (stage.stage.first()) calls.enter(lookups(config));
  return calls.take();
}

namespace {

// Adds a pass of the experts of the stage's blocks [begin, end).
void exchange(ContextMessages& all, const GptConfig& config, const StageCase& stage,
              MoePass MoeCost::*pass, std::size_t begin, std::size_t end) {
  const int first = stage.stage.blocks(config).begin;
  for (std::size_t block = begin; block < end; ++block)
    if (config.has_experts(first + static_cast<int>(block)))
      add(all, {{"ep", (moe_cost(moe_case(config, stage, block)).*pass).messages}});
}

}  // namespace

ContextMessages forward_messages(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::forward_messages(config, stage);
  ContextMessages all;
  exchange(all, config, stage, &MoeCost::forward, 0,
           static_cast<std::size_t>(layers_of(config, stage)));
  if (stage.cp.ranks > 1)
    add(all, core_attention_cost(config, stage).forward.messages, layers_of(config, stage));
  return all;
}

ContextMessages backward_weights_messages(const GptConfig& config, const StageCase& stage) {
  return stage.grid.on() ? grids::backward_weights_messages(config, stage) : ContextMessages{};
}

ContextMessages backward_input_messages(const GptConfig& config, const StageCase& stage) {
  if (stage.grid.on()) return grids::backward_input_messages(config, stage);
  ContextMessages all;
  const auto layers = static_cast<std::size_t>(layers_of(config, stage));
  exchange(all, config, stage, &MoeCost::backward_input, 0, layers);
  for (const LayerGroup& group : layer_groups(stage.options, layers))
    if (group.recomputed) exchange(all, config, stage, &MoeCost::forward, group.begin, group.end);
  if (stage.cp.ranks == 1) return all;
  const ContextCost cost = core_attention_cost(config, stage);
  add(all, cost.forward.messages, recomputed_attentions(config, stage));
  add(all, cost.backward.messages, layers_of(config, stage));
  return all;
}

namespace {

void add(HostCopies& all, const HostCopies& each, int times) {
  all.to_host += static_cast<std::size_t>(times) * each.to_host;
  all.to_device += static_cast<std::size_t>(times) * each.to_device;
}

}  // namespace

HostCopies forward_copies(const GptConfig& config, const StageCase& stage) {
  HostCopies all;
  if (stage.cp.ranks > 1)
    add(all, core_attention_cost(config, stage).forward.copies, layers_of(config, stage));
  return all;
}

HostCopies backward_input_copies(const GptConfig& config, const StageCase& stage) {
  HostCopies all;
  if (stage.cp.ranks == 1) return all;
  const ContextCost cost = core_attention_cost(config, stage);
  add(all, cost.forward.copies, recomputed_attentions(config, stage));
  add(all, cost.backward.copies, layers_of(config, stage));
  return all;
}

}  // namespace layers
