#include "suite/training_step/plain_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "machine/base/error.h"
#include "suite/reference/plain/training.h"
#include "suite/trainer/tokens/encoder_examples.h"
#include "suite/trainer/tokens/step_tokens.h"

namespace suite {

namespace {

// About ten seconds of plain loops.
constexpr double most_flops = 3e10;

// Read from the configuration's own keys. parts: ranks that split a micro-batch, each of which
// routes its own tokens.
MoeSizes mixture_sizes(const TrainingConfig& config, int parts = 1) {
  const layers::MoeConfig& moe = config.model.moe;
  MoeSizes sizes{.experts = 0};
  if (moe.num_experts == 0) return sizes;
  sizes.tokens = std::int64_t{config.batch.micro_batch_size} * config.model.sequence / parts;
  sizes.hidden = config.model.hidden;
  sizes.ffn = moe.ffn_hidden_size > 0 ? moe.ffn_hidden_size : config.model.ffn();
  sizes.shared = moe.shared_expert_intermediate_size;
  sizes.experts = moe.num_experts;
  sizes.topk = moe.topk;
  sizes.swiglu = config.model.swiglu;
  sizes.bias = !config.model.disable_bias_linear;
  sizes.softmax_over_all = moe.pre_softmax;
  sizes.sinkhorn = moe.load_balancing == layers::LoadBalancing::sinkhorn;
  if (moe.load_balancing == layers::LoadBalancing::aux_loss) sizes.aux = moe.aux_loss_coeff;
  sizes.z = moe.z_loss_coeff;
  if (moe.expert_capacity_factor > 0)
    sizes.capacity = std::min(
        sizes.tokens, static_cast<std::int64_t>(std::ceil(
                          static_cast<double>(sizes.tokens * sizes.topk) /
                          static_cast<double>(sizes.experts) * moe.expert_capacity_factor)));
  sizes.drops_last = moe.token_drop_policy == layers::TokenDropPolicy::position;
  return sizes;
}

SparseRule sparse_rule(const TrainingConfig::Model& model) {
  const layers::SparsePattern& pattern = model.sparse.pattern;
  SparseRule rule;
  rule.pattern = name(pattern.mode);
  rule.unidirectional = model.architecture == layers::Architecture::decoder;
  rule.horizontal_global_attention = pattern.horizontal_global_attention;
  rule.blocks = model.sequence / model.sparse.block;
  rule.num_local_blocks = pattern.num_local_blocks;
  rule.num_global_blocks = pattern.num_global_blocks;
  rule.num_sliding_window_blocks = pattern.num_sliding_window_blocks;
  rule.global_begins = pattern.global_block_indices;
  rule.global_ends = pattern.global_block_end_indices;
  rule.num_different_global_patterns = pattern.num_different_global_patterns;
  rule.different_layout_per_head = pattern.different_layout_per_head;
  rule.num_random_blocks =
      pattern.num_random_blocks.value_or(pattern.mode == layers::SparseMode::bigbird ? 1 : 0);
  if (pattern.mode == layers::SparseMode::variable) rule.windows = pattern.local_window_blocks;
  return rule;
}

plain::Model plain_model(const TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  plain::Model plain;
  plain.layers = model.layers;
  plain.hidden = model.hidden;
  plain.heads = model.heads;
  plain.groups = model.group_query_attention ? model.num_query_groups : model.heads;
  plain.table_rows = model.vocabulary;
  plain.vocabulary = model.tokens > 0 ? model.tokens : model.vocabulary;
  plain.sequence = model.sequence;
  plain.ffn = model.ffn();
  plain.rms_norm = model.normalization == layers::Normalization::rms_norm;
  plain.swiglu = model.swiglu;
  plain.rotary = model.position_embedding_type == layers::PositionEmbedding::rope;
  plain.biases = !model.disable_bias_linear;
  plain.encoder = model.architecture == layers::Architecture::encoder;
  plain.encoder_decoder = model.architecture == layers::Architecture::encoder_decoder;
  plain.tied = !model.untie_embeddings_and_output_weights;
  plain.epsilon = model.layer_norm_epsilon;
  plain.rotary_base = model.rotary_base;
  plain.hidden_dropout = model.hidden_dropout;
  plain.attention_dropout = model.attention_dropout;
  plain.mixture = mixture_sizes(config);
  plain.experts_every = model.moe_layer_freq;
  if (model.sparse.pattern.mode != layers::SparseMode::none) {
    plain.block = model.sparse.block;
    plain.sparse = sparse_rule(model);
  }
  return plain;
}

// Read from the configuration's own keys, not from the rule that the judged optimizer is given.
plain::Rule plain_rule(const TrainingConfig::Optimizer& optimizer) {
  using enum plain::Rule::Kind;
  plain::Rule rule;
  rule.kind = optimizer.type == "rmsprop"        ? rmsprop
              : optimizer.type == "sgd"          ? sgd
              : optimizer.type == "lion"         ? lion
              : optimizer.type == "lamb"         ? lamb
              : optimizer.type == "muon"         ? muon
              : optimizer.type == "adafactor"    ? adafactor
              : optimizer.type == "one_bit_adam" ? one_bit_adam
              : optimizer.type == "one_bit_lamb" ? one_bit_lamb
              : optimizer.type == "adamw_8bit"   ? adamw
              : optimizer.decoupled_decay        ? adamw
                                                 : adam;
  rule.beta1 = optimizer.betas[0];
  rule.beta2 = optimizer.betas[1];
  rule.epsilon = optimizer.epsilon;
  rule.decay = optimizer.weight_decay;
  rule.momentum = optimizer.momentum;
  rule.smoothing = optimizer.smoothing;
  rule.least_ratio = optimizer.min_coeff;
  rule.largest_ratio = optimizer.max_coeff;
  rule.decay_rate = optimizer.decay_rate;
  rule.largest_update = optimizer.clip_threshold;
  rule.muon = {.nesterov = optimizer.muon.nesterov,
               .splits_qkv = optimizer.muon.split_qkv,
               .steps = optimizer.muon.num_ns_steps,
               .coefficients = optimizer.muon.coefficient_type,
               .scale = optimizer.muon.scale_mode,
               .factor = optimizer.muon.extra_scale_factor};
  rule.freeze_step = optimizer.freeze_step;
  rule.ratio_beta = optimizer.coeff_beta;
  rule.least_factor = optimizer.factor_min;
  rule.largest_factor = optimizer.factor_max;
  rule.largest_change = optimizer.factor_threshold;
  rule.largest_norm = optimizer.clipping;
  return rule;
}

plain::Training plain_training(const TrainingConfig& config) {
  plain::Training training(plain_model(config), plain_rule(config.optimizer), config.seed);
  std::string pattern;
  for (const char c : config.frozen + "+") {
    if (c != '+') {
      pattern += c;
    } else if (!pattern.empty()) {
      training.freeze(std::exchange(pattern, {}));
    }
  }
  return training;
}

plain::Batch batch_of(const TrainingConfig& config, const Corpus& corpus, int step) {
  const int sequences = config.batch.global_batch_size, length = config.model.sequence;
  const int vocabulary = plain_model(config).vocabulary;
  const auto size = static_cast<std::size_t>(sequences) * static_cast<std::size_t>(length);
  plain::Batch batch{std::vector<std::int32_t>(size),
                     std::vector<std::int32_t>(size),
                     std::int64_t{step} * sequences * length,
                     std::vector<std::int32_t>(size),
                     {},
                     std::vector<std::int32_t>(size)};
  for (int i = 0; i < sequences; ++i) {
    const auto at = static_cast<std::size_t>(i) * static_cast<std::size_t>(length);
    const auto index = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(sequences) +
                       static_cast<std::uint64_t>(i);
    const auto part = [&](std::vector<std::int32_t>& of) {
      return std::span(of).subspan(at, static_cast<std::size_t>(length));
    };
    const auto tokens = part(batch.tokens), targets = part(batch.targets);
    if (config.model.encoder_decoder()) {
      const auto both = 2 * static_cast<std::size_t>(length);
      std::vector<std::int32_t> drawn(both), next(both);
      corpus.draw(config.seed, index, 2 * length, drawn.data(), next.data());
      std::copy_n(drawn.begin() + length, length, part(batch.decoder_tokens).begin());
      std::copy_n(next.begin() + length, length, targets.begin());
      const int read = prefix_length(config.seed, index, static_cast<std::size_t>(length));
      std::copy_n(drawn.begin(), read, tokens.begin());
      batch.lengths.push_back(read);
    } else {
      corpus.draw(config.seed, index, length, tokens.data(), targets.data());
      batch.lengths.push_back(
          config.model.encoder()
              ? mask_tokens(config.seed, index, vocabulary, {tokens, targets, part(batch.types)})
              : length);
    }
    for (const std::vector<std::int32_t>* drawn : {&batch.tokens, &batch.targets})
      for (int j = 0; j < length; ++j)
        SHARDMARK_CHECK((*drawn)[at + static_cast<std::size_t>(j)], <, vocabulary);
    const int counted =
        config.uneven_tokens ? counted_tokens(config.seed, step, i, sequences, length) : length;
    std::fill(batch.targets.begin() + static_cast<std::ptrdiff_t>(at) + counted,
              batch.targets.begin() + static_cast<std::ptrdiff_t>(at) + length, -1);
  }
  return batch;
}

// Adds the decisions of a step.
plain::Batch with_decisions(plain::Batch batch, const StepRouting& routing) {
  for (const std::vector<layers::RoutingRecord>& micro_batch : routing) {
    auto& of_layers = batch.decisions.emplace_back();
    for (const layers::RoutingRecord& record : micro_batch)
      of_layers.push_back({record.chosen, record.choices});
  }
  return batch;
}

}  // namespace

StepRouting judged_routing(harness::Judge& judge, const Trainer& trainer, int step) {
  const machine::Degrees& degrees = trainer.config().degrees;
  const MoeSizes sizes = mixture_sizes(trainer.config(), degrees.tp * degrees.cp);
  const StepRouting& routing = trainer.routing();
  for (std::size_t i = 0; i < routing.size(); ++i)
    for (std::size_t layer = 0; layer < routing[i].size(); ++layer) {
      const layers::RoutingRecord& record = routing[i][layer];
      if (record.chosen.empty()) continue;
      const MoeReference expected = moe_decisions(sizes, record.logits);
      const auto compare = [&](std::string_view what, const std::vector<std::int32_t>& got,
                               const std::vector<std::int32_t>& wanted) {
        judge.exact(fmt::format("{} of step {}, micro-batch {}, layer {}", what, step, i, layer),
                    std::vector<double>(got.begin(), got.end()),
                    std::vector<double>(wanted.begin(), wanted.end()));
      };
      compare("experts chosen", record.chosen, expected.chosen);
      compare("experts after drops", record.choices, expected.choices);
    }
  return trainer.gathered_routing();
}

void judge_logits(harness::Judge& judge, const TrainingRouting& routing,
                  const Reference& reference) {
  for (std::size_t step = 0; step < routing.size(); ++step)
    if (const std::vector<double> logits = logits_of(routing[step]); !logits.empty())
      judge.numerics(fmt::format("logits of the routers in step {} against double", step + 1),
                     distance(logits, reference.exact.logits[step]), reference.bounds.logits[step]);
}

double tokens_that_count(const TrainingConfig& config, const Corpus& corpus, int step) {
  const plain::Batch batch = batch_of(config, corpus, step);
  return static_cast<double>(
      std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; }));
}

std::string why_not_plain(const TrainingConfig& config) {
  if (!config.weights.empty()) return "initial values come from a file";
  if (config.zero.options.offload_optimizer.is_delayed()) return "updates are delayed";
  if (plain_model(config).flops(reference_steps * config.tokens()) > most_flops)
    return "the model is too large for plain loops";
  return {};
}

History plain_history(const TrainingConfig& config, const Corpus& corpus,
                      const SkippedSteps& skipped, const std::function<void()>& alive,
                      const TrainingRouting& routing) {
  plain::Training training = plain_training(config);
  const LearningRate rate = config.learning_rate();
  History history;
  const int first = first_taken(skipped);
  std::int64_t updates = 0;
  for (int step = 0; step < reference_steps; ++step) {
    const bool skips = skipped[static_cast<std::size_t>(step)];
    const StepRouting& decisions =
        routing.empty() ? StepRouting() : routing[static_cast<std::size_t>(step)];
    const plain::Step result = training.step(
        with_decisions(batch_of(config, corpus, step), decisions), rate.after(updates), skips);
    updates += !skips;
    alive();
    history.losses.push_back(result.loss);
    history.logits.push_back(result.logits);
    if (step == first) {
      history.gradient_norm = result.gradient_norm;
      history.gradient_factor = result.factor;
    }
    for (const auto& [name, parameter] : training.parameters()) {
      ParameterHistory& mine = history.parameters[name];
      if (step == first) {
        if (!parameter.frozen) mine.first_gradient = parameter.gradient;
        mine.after_one = parameter.value;
      }
      if (step + 1 == reference_steps) mine.after_all = parameter.value;
    }
  }
  return history;
}

std::vector<DrivenStep> driven_history(const TrainingConfig& config, const Corpus& corpus,
                                       const GradientSums& sums, const std::function<void()>& alive,
                                       const std::vector<bool>& skipped,
                                       const ValueShifts& shifts) {
  plain::Training training = plain_training(config);
  const LearningRate rate = config.learning_rate();
  std::vector<DrivenStep> history;
  std::int64_t updates = 0;
  for (std::size_t step = 0; step < sums.size(); ++step) {
    const bool skips = !skipped.empty() && skipped[step];
    std::map<std::string, std::vector<double>> shifted;
    if (shifts)
      for (const auto& [name, parameter] : training.parameters())
        shifted[name] = shifts(step, name, parameter.value);
    for (const auto& [name, values] : shifted) training.move(name, values);
    const plain::Step result = training.step(batch_of(config, corpus, static_cast<int>(step)),
                                             rate.after(updates), skips, &sums[step]);
    for (const auto& [name, values] : shifted) training.move(name, values, -1);
    updates += !skips;
    alive();
    DrivenStep& mine = history.emplace_back();
    mine.loss = result.loss;
    mine.gradient_norm = result.gradient_norm;
    for (const auto& [name, parameter] : training.parameters()) {
      if (!parameter.frozen) mine.gradients[name] = parameter.gradient;
      mine.values[name] = parameter.value;
    }
  }
  return history;
}

}  // namespace suite
