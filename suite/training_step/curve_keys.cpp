#include "suite/training_step/curve_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "suite/configuration/keys.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"
#include "suite/training_step/compressed/compressed_training.h"
#include "suite/training_step/reference.h"

namespace suite {
namespace {

using configuration::Key;

template <class Part>
bool is_in(const void* at, const Part& part) {
  const void* const begin = &part;
  const void* const end = &part + 1;
  return std::greater_equal<>{}(at, begin) && std::less<>{}(at, end);
}

// Returns whether a key only selects where and in which dtype a number is computed, or is part of
// another value of curve_keys.
bool is_only_placement(const void* at, const TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  // The losses of experts are means over a micro-batch.
  if (model.has_experts() && is_in(at, config.batch.micro_batch_size)) return false;
  if (!model.has_experts() && (is_in(at, model.moe) || is_in(at, model.moe_layer_freq)))
    return true;
  if (is_in(at, model.sparse_direction) || (!model.sparse.on() && is_in(at, model.sparse)))
    return true;
  return is_in(at, config.degrees) || is_in(at, config.tensor_grid) ||
         is_in(at, config.expert_parallel) || is_in(at, config.expert_tensor_parallel) ||
         is_in(at, config.pipeline) || is_in(at, config.activations) || is_in(at, config.zero) ||
         is_in(at, config.transport) || is_in(at, config.graph) || is_in(at, config.precision) ||
         is_in(at, config.tensor_parallel) || is_in(at, config.batch.micro_batch_size) ||
         is_in(at, config.batch.gradient_accumulation_steps) || is_in(at, model.name) ||
         is_in(at, model.arguments) || is_in(at, model.seq_length) || is_in(at, model.tokens) ||
         is_in(at, model.make_vocab_size_divisible_by) || is_in(at, model.max_position_embeddings);
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

}  // namespace

CurveKeys curve_keys(const TrainingConfig& given, const Corpus& corpus) {
  TrainingConfig config = given;
  CurveKeys keys;
  const TrainingConfig::Model& model = config.model;
  for (const Key& key : configuration::keys()) {
    if (!key.field) continue;
    const configuration::Field field = key.field(config);
    if (!is_only_placement(field.address(), config))
      keys.emplace_back(std::string(key.name()), field.text());
  }
  keys.emplace_back("--seq-length", std::to_string(model.sequence));
  keys.emplace_back("--vocab-size",
                    std::to_string(model.tokens > 0 ? model.tokens : model.vocabulary));
  keys.emplace_back("delayed_update",
                    config.zero.options.offload_optimizer.is_delayed() ? "true" : "false");
  if (compresses_gradients(config)) {
    const zero::GradientCompression& compression = config.zero.options.gradient_compression;
    keys.emplace_back("gradient-compression",
                      fmt::format("{}, density {}, deviations {}", compression.algorithm,
                                  compression.density, compression.deviations));
  }
  const zero::PlusPlusOptions& plus_plus = config.zero.options.plus_plus;
  for (const auto& [name, on] : {std::pair("zero_quantized_weights", plus_plus.quantized_weights),
                                 {"zero_quantized_gradients", plus_plus.quantized_gradients}})
    if (on && config.shards() > 1) keys.emplace_back(name, "true");
  keys.emplace_back(
      "--data", corpus.source().empty()
                    ? "generated"
                    : fmt::format("{} of {} tokens", file_name(corpus.source()), corpus.size()));
  keys.emplace_back("--load", config.weights.empty() ? "none" : file_name(config.weights));
  // The seed of the run, also if a file of arguments has it.
  std::erase_if(keys, [](const auto& one) { return one.first == "--seed"; });
  keys.emplace_back("--seed", std::to_string(config.seed));
  return keys;
}

StoredCurve curve_of(const TrainingConfig& config, const Corpus& corpus, Against judged,
                     const std::vector<double>& losses, const std::vector<int>& skipped) {
  StoredCurve curve{curve_keys(config, corpus),
                    std::string(machine::name(config.precision.dtype)),
                    judged,
                    losses,
                    skipped,
                    {}};
  // Both runs have an error of rounding.
  const double own = gradient_epsilon(config);
  for (const machine::Dtype dtype : machine::floating_dtypes) {
    TrainingConfig other = config;
    other.precision.dtype = dtype;
    curve.tolerance[std::string(machine::name(dtype))] = own + gradient_epsilon(other);
  }
  return curve;
}

void check_reference(const harness::LossReference& reference, std::ptrdiff_t steps) {
  const Against against = parse_against(reference.kind);
  const bool stored = against == Against::stored;
  if (stored && reference.file.empty())
    reject("--reference stored requires --reference-file FILE, which --save-reference writes");
  if (!stored && !reference.file.empty())
    reject("--reference-file requires --reference stored (got {})", reference.kind);
  if (stored && !reference.save.empty())
    reject("--save-reference requires --reference cpu or none (got stored)");
  if (against != Against::cpu && steps == 0)
    reject("--reference {} requires a case of a training step; none is selected", reference.kind);
  if (reference.save.empty()) return;
  if (steps != 1)
    reject(
        "--save-reference requires exactly one case of a training step (got {}); "
        "--benchmark_list_tests lists them",
        steps);
  check_writable(reference.save);
}

}  // namespace suite
