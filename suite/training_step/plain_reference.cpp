#include "suite/training_step/plain_reference.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "machine/base/error.h"
#include "suite/reference/plain/training.h"
#include "suite/trainer/encoder_examples.h"
#include "suite/trainer/step_tokens.h"

namespace suite {

namespace {

// About ten seconds of plain loops.
constexpr double most_flops = 3e10;

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
  return plain;
}

// Read from the configuration's own keys, not from the rule that the judged optimizer is given.
plain::Rule plain_rule(const TrainingConfig::Optimizer& optimizer) {
  using enum plain::Rule::Kind;
  plain::Rule rule;
  rule.kind = optimizer.type == "rmsprop" ? rmsprop
              : optimizer.type == "sgd"   ? sgd
              : optimizer.decoupled_decay ? adamw
                                          : adam;
  rule.beta1 = optimizer.betas[0];
  rule.beta2 = optimizer.betas[1];
  rule.epsilon = optimizer.epsilon;
  rule.decay = optimizer.weight_decay;
  rule.momentum = optimizer.momentum;
  rule.smoothing = optimizer.smoothing;
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

}  // namespace

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
                      const SkippedSteps& skipped, const std::function<void()>& alive) {
  plain::Training training = plain_training(config);
  const LearningRate rate = config.learning_rate();
  History history;
  const int first = first_taken(skipped);
  std::int64_t updates = 0;
  for (int step = 0; step < reference_steps; ++step) {
    const bool skips = skipped[static_cast<std::size_t>(step)];
    const plain::Step result =
        training.step(batch_of(config, corpus, step), rate.after(updates), skips);
    updates += !skips;
    alive();
    history.losses.push_back(result.loss);
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
                                       const GradientSums& sums,
                                       const std::function<void()>& alive) {
  plain::Training training = plain_training(config);
  const LearningRate rate = config.learning_rate();
  std::vector<DrivenStep> history;
  for (std::size_t step = 0; step < sums.size(); ++step) {
    const plain::Step result =
        training.step(batch_of(config, corpus, static_cast<int>(step)),
                      rate.after(static_cast<std::int64_t>(step)), false, &sums[step]);
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
