#include "suite/checkpoint/training_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <functional>
#include <vector>

#include "suite/checkpoint/adafactor_means.h"
#include "suite/checkpoint/block_scales.h"
#include "suite/checkpoint/lamb_ratios.h"
#include "suite/configuration/keys.h"
#include "suite/files/mapped_file.h"

namespace suite {
namespace {

using configuration::Key;
using machine::Axis;
using zero::Range;

// Returns the members of a model that determine its tensors, and so are keys of a checkpoint.
std::vector<const Key*> model_keys(TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  const void* const other[] = {&model.name,
                               &model.arguments,
                               &model.seq_length,
                               &model.tokens,
                               &model.make_vocab_size_divisible_by,
                               &model.max_position_embeddings,
                               &model.parameters,
                               &model.vocabulary,
                               &model.sequence,
                               &model.sparse_direction};
  std::vector<const Key*> all;
  for (const Key& key : configuration::keys()) {
    if (!key.field) continue;
    const void* const at = key.field(config).address();
    const bool inside = std::greater_equal<>{}(at, static_cast<const void*>(&model)) &&
                        std::less<>{}(at, static_cast<const void*>(&model + 1));
    if (inside && std::ranges::find(other, at) == std::end(other)) all.push_back(&key);
  }
  return all;
}

// Checkpoints of models without experts do not have their keys.
bool is_of_experts(const Key& key, TrainingConfig& config) {
  const void* const at = key.field(config).address();
  const layers::MoeConfig& moe = config.model.moe;
  return at == &config.model.moe_layer_freq ||
         (std::greater_equal<>{}(at, static_cast<const void*>(&moe)) &&
          std::less<>{}(at, static_cast<const void*>(&moe + 1)));
}

// Nor do checkpoints of models with dense attention have the keys of a layout.
bool is_of_sparse_attention(const Key& key) {
  return key.megatron.starts_with("--sparse-attention");
}

// Returns the parts of a range that this rank saves. A rank that shards nothing saves its shard,
// too.
std::vector<Range> saved(const zero::Layout& layout, bool sharded, int dp_rank, Range range) {
  if (sharded) return {range};
  std::vector<Range> parts;
  for (const zero::Bucket& bucket : layout.buckets)
    if (const Range part = intersection(layout.shard(bucket, dp_rank), range); part.size() > 0)
      parts.push_back(part);
  return parts;
}

zero::RangeStates slice(const zero::RangeStates& states, std::int64_t begin, std::int64_t size) {
  const auto part = [&](const zero::Tensor& state) {
    return state ? state.slice(begin, {size}) : zero::Tensor();
  };
  return {part(states.values),
          part(states.master),
          part(states.first_moment),
          part(states.second_moment),
          {},
          part(states.fresh_variance)};
}

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

constexpr const char* tables[] = {"embedding.token.weight", "head.output.weight",
                                  "head.output.bias"};
constexpr const char* positions = "embedding.position.weight";
const std::string only_values = "--only-values";  // a key of weights_facts

// Returns the keys of a model's shape. Two ways to write a shape give the same keys.
zero::Texts shape_keys(TrainingConfig::Model model) {
  TrainingConfig config;
  const int groups = model.query_groups();
  model.ffn_hidden_size = model.ffn();
  model.group_query_attention = groups != model.heads;
  model.num_query_groups = model.group_query_attention ? groups : 1;
  if (model.has_experts()) model.moe.ffn_hidden_size = model.mixture().ffn_hidden_size;
  if (!model.rotary()) model.rotary_base = layers::GptConfig().rotary_base;
  model.sparse.pattern.num_random_blocks = model.sparse.pattern.random_blocks();
  config.model = std::move(model);
  zero::Texts keys;
  for (const Key* key : model_keys(config))
    if ((config.model.has_experts() || !is_of_experts(*key, config)) &&
        (config.model.sparse.on() || !is_of_sparse_attention(*key)))
      keys[std::string(key->command_name())] = key->field(config).text();
  keys["--seq-length"] = std::to_string(config.model.sequence);
  keys["--vocab-size"] =
      std::to_string(config.model.tokens > 0 ? config.model.tokens : config.model.vocabulary);
  return keys;
}

// Values belong to a model with any dropout and any layout of attention.
bool is_left_open(const zero::Texts& stored, const std::string& key) {
  return stored.contains(only_values) &&
         (key.ends_with("-dropout") || key.starts_with("--sparse-attention"));
}

}  // namespace

bool loads_checkpoint(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool saves_checkpoint(const std::string& path) {
  std::error_code ignored;
  return !path.empty() && !path.ends_with(".safetensors") &&
         !std::filesystem::is_regular_file(path, ignored);
}

zero::Texts checkpoint_keys(const TrainingConfig& config, const Corpus& corpus) {
  zero::Texts keys = shape_keys(config.model);
  keys["--dtype"] = machine::name(config.precision.dtype);
  keys["--optimizer"] = zero::name(config.optimizer.rule());
  if (config.optimizer.is_8bit()) {  // blocks are those of a rank's parts
    keys["--min-8bit-size"] = std::to_string(config.optimizer.min_8bit_size);
    keys["--tensor-model-parallel-size"] = std::to_string(config.degrees.tp);
  }
  keys["--global-batch-size"] = std::to_string(config.batch.global_batch_size);
  keys["--uneven-tokens"] = config.uneven_tokens ? "on" : "off";
  keys["--data"] =
      corpus.source().empty()
          ? "generated"
          : fmt::format("{} of {} tokens",
                        std::filesystem::path(corpus.source()).filename().string(), corpus.size());
  keys["--seed"] = std::to_string(config.seed);
  return keys;
}

TrainingConfig::Model model_of(const zero::Checkpoint& checkpoint) {
  const zero::Texts& texts = checkpoint.facts().texts;
  const auto text = [&](const std::string& key) {
    const auto found = texts.find(key);
    if (found == texts.end()) throw FileError("{}: it has no {}", checkpoint.index_path(), key);
    return found->second;
  };
  TrainingConfig config;
  try {
    for (const Key* key : model_keys(config)) {
      const std::string name(key->command_name());
      if (is_left_open(texts, name)) continue;
      const bool is_optional = is_of_experts(*key, config) || is_of_sparse_attention(*key);
      if (is_optional && !texts.contains(name)) continue;
      const configuration::Field field = key->field(config);
      field.set(configuration::value_of(field.kind(), text(name)));
    }
    config.model.sequence = std::stoi(text("--seq-length"));
    config.model.tokens = std::stoi(text("--vocab-size"));
  } catch (const FileError&) {
    throw;
  } catch (const std::exception& error) {
    throw FileError("{}: {}", checkpoint.index_path(), error.what());
  }
  const auto table = checkpoint.tensors().find(fmt::format("{}/values", tables[0]));
  if (table == checkpoint.tensors().end() || table->second.front().stored.piece.global.size() != 2)
    throw FileError("{}: it has no table of tokens", checkpoint.index_path());
  config.model.vocabulary = static_cast<int>(table->second.front().stored.piece.global[0]);
  return config.model;
}

zero::Checkpoint open_checkpoint(const std::string& folder) {
  try {
    return zero::Checkpoint(folder);
  } catch (const zero::CheckpointError& error) {
    throw FileError("{}", error.what());
  }
}

void check_checkpoint(const zero::Checkpoint& checkpoint, const TrainingConfig& config,
                      const Corpus& corpus) {
  const zero::Texts &stored = checkpoint.facts().texts, mine = checkpoint_keys(config, corpus);
  const bool weights = stored.contains(only_values);
  const auto check = [&](const std::string& key, const std::string& value) {
    if (weights && (!stored.contains(key) || key == "--seq-length")) return;
    const auto found = stored.find(key);
    const std::string theirs = found == stored.end() ? "not set" : found->second;
    if (theirs != value)
      throw FileError("{} is {}; expected {}, as in checkpoint {}", key, value, theirs,
                      checkpoint.index_path());
  };
  // Last, because its default follows --hidden-size, which the message should name.
  const std::string derived = "--ffn-hidden-size";
  for (const auto& [key, value] : mine)
    if (key != derived) check(key, value);
  check(derived, mine.at(derived));
  for (const auto& [key, value] : stored)
    if (!mine.contains(key) && key != only_values)
      throw FileError("{} is not set; expected {}, as in checkpoint {}", key, value,
                      checkpoint.index_path());
}

void add_states(Trainer& trainer, zero::PieceSink& sink) {
  const zero::Layout& layout = trainer.states().layout();
  std::vector<collectives::Parameter*> held;
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < trainer.parameters().size(); ++i) {
    if (!trainer.is_first_holder(*trainer.parameters()[i])) continue;
    held.push_back(trainer.parameters()[i]);
    offsets.push_back(layout.offsets[i]);
  }
  trainer.optimizer_step().drain();
  const machine::Grid& grid = trainer.grid();
  const int dp_rank = trainer.communicator("dp")->rank();
  trainer.optimizer_step().optimizer().visit(
      false, [&](Range range, const zero::RangeStates& states) {
        for (const Range part : saved(layout, trainer.config().zero.stage > 0, dp_rank, range))
          sink.add(zero::flat_pieces(held, offsets, grid.size(Axis::tp), grid.coordinate(Axis::tp),
                                     part),
                   slice(states, part.begin - range.begin, part.size()));
      });
  add_means(trainer, sink);
  add_scales(trainer, sink);
  add_ratios(trainer, sink);
}

zero::Facts weights_facts(const TrainingConfig::Model& model, machine::Dtype dtype) {
  zero::Facts facts{.numbers = {{"steps", 0}}, .texts = shape_keys(model)};
  facts.texts["--dtype"] = machine::name(dtype);
  facts.texts[only_values] = "true";
  std::erase_if(facts.texts, [&](const auto& one) { return is_left_open(facts.texts, one.first); });
  return facts;
}

zero::Facts checkpoint_facts(const Trainer& trainer, zero::Texts keys) {
  const Trainer::Counters counters = trainer.counters();
  return {.numbers = {{"steps", unsigned_of(counters.steps)},
                      {"updates", unsigned_of(counters.updates)},
                      {"optimizer_steps", unsigned_of(counters.optimizer_steps)},
                      {"loss_scale", std::bit_cast<std::uint64_t>(counters.scale.scale)},
                      {"loss_scale_patience", unsigned_of(counters.scale.patience)},
                      {"loss_scale_clean", unsigned_of(counters.scale.clean)},
                      {"vocabulary", unsigned_of(counters.vocabulary)},
                      {"sequences",
                       unsigned_of(counters.steps * trainer.config().batch.global_batch_size)}},
          .texts = std::move(keys)};
}

void save_checkpoint(Trainer& trainer, const std::string& folder, const zero::Texts& keys) {
  zero::save(trainer.world(), trainer.group(), folder, checkpoint_facts(trainer, keys),
             [&](zero::PieceSink& sink) { add_states(trainer, sink); });
}

void load_checkpoint(const std::string& folder, Trainer& trainer) {
  zero::Checkpoint checkpoint(folder);
  const bool weights = checkpoint.facts().texts.contains(only_values);
  const auto number = [&](const char* name) {
    return static_cast<std::int64_t>(checkpoint.number(name));
  };
  Trainer::Counters counters = trainer.counters();
  if (!weights)
    counters = {
        .steps = number("steps"),
        .updates = number("updates"),
        .optimizer_steps = number("optimizer_steps"),
        .scale = {std::bit_cast<double>(checkpoint.number("loss_scale")),
                  static_cast<int>(number("loss_scale_patience")), number("loss_scale_clean")},
        .vocabulary = static_cast<int>(number("vocabulary"))};
  for (const char* table : tables) checkpoint.set_rows(table, counters.vocabulary);
  if (weights) checkpoint.set_rows(positions, trainer.config().model.sequence);
  const zero::Layout& layout = trainer.states().layout();
  const machine::Grid& grid = trainer.grid();
  zero::OwnedOptimizer& optimizer = trainer.optimizer_step().optimizer();
  trainer.optimizer_step().drain();  // of steps that the trainer has taken
  optimizer.visit(true, [&](Range range, zero::RangeStates states) {
    if (weights) states = {states.values, states.values, {}, {}};
    checkpoint.read(zero::flat_pieces(trainer.parameters(), layout.offsets, grid.size(Axis::tp),
                                      grid.coordinate(Axis::tp), range),
                    states);
  });
  if (!weights) {
    read_means(checkpoint, trainer);
    read_scales(checkpoint, trainer);
    read_ratios(checkpoint, trainer);
  }
  if (weights) optimizer.values_changed();
  trainer.optimizer_step().values_loaded();
  trainer.set_counters(counters);
}

}  // namespace suite
