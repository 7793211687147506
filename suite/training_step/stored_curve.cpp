#include "suite/training_step/stored_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "machine/base/names.h"
#include "suite/configuration/keys.h"
#include "suite/files/mapped_file.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"
#include "suite/training_step/reference.h"

namespace suite {
namespace {

using configuration::Key;
using json = nlohmann::ordered_json;

constexpr std::string_view format_name = "shardmark loss curve 1";
constexpr std::array dtypes{machine::Dtype::float32, machine::Dtype::bfloat16,
                            machine::Dtype::float16, machine::Dtype::float64};

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
  return is_in(at, config.degrees) || is_in(at, config.pipeline) || is_in(at, config.activations) ||
         is_in(at, config.zero) || is_in(at, config.transport) || is_in(at, config.precision) ||
         is_in(at, config.tensor_parallel) || is_in(at, config.batch.micro_batch_size) ||
         is_in(at, config.batch.gradient_accumulation_steps) || is_in(at, model.name) ||
         is_in(at, model.arguments) || is_in(at, model.seq_length) || is_in(at, model.tokens) ||
         is_in(at, model.make_vocab_size_divisible_by) || is_in(at, model.max_position_embeddings);
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// FNV-1a over all keys and values.
std::string hash_of(const CurveKeys& keys) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& [key, value] : keys)
    for (const char c : fmt::format("{}={}\n", key, value))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

std::string text_at(const json& object, const char* key) {
  return object.at(key).get<std::string>();
}

// For messages. A value of another type can be nested deeply.
std::string shown(const json& value) {
  return value.is_number() ? value.dump() : std::string("a value of type ") + value.type_name();
}

double number_of_json(const json& value, const char* key) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!std::isfinite(number) || number < 0)
    throw std::invalid_argument(
        fmt::format("{} has {}; expected numbers from 0", key, shown(value)));
  return number;
}

// Returns a whole number from 1.
std::uint64_t count_of_json(const json& value, const char* key, std::uint64_t most) {
  const std::uint64_t count = value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
  if (count < 1 || count > most)
    throw std::invalid_argument(
        fmt::format("{} has {}; expected 1 to {}", key, shown(value), most));
  return count;
}

StoredCurve parse(const json& whole) {
  if (const std::string format = text_at(whole, "format"); format != format_name)
    throw std::invalid_argument(
        fmt::format("format is {}; expected '{}'", in_quotes(format), format_name));
  StoredCurve curve;
  for (const auto& [key, value] : whole.at("configuration").items())
    curve.configuration.emplace_back(key, value.get<std::string>());
  if (const std::string hash = text_at(whole, "configuration_hash");
      hash != hash_of(curve.configuration))
    throw std::invalid_argument(
        fmt::format("configuration_hash is {}; expected {}, the hash of "
                    "its configuration",
                    printable(hash), hash_of(curve.configuration)));
  curve.dtype = text_at(whole, "dtype");
  curve.judged = parse_against(printable(text_at(whole, "judged")));
  for (const json& loss : whole.at("losses"))
    curve.losses.push_back(number_of_json(loss, "losses"));
  constexpr std::size_t most_steps = 100'000;
  if (curve.losses.empty() || curve.losses.size() > most_steps)
    throw std::invalid_argument(
        fmt::format("losses has {} numbers; expected 1 to {}", curve.losses.size(), most_steps));
  const std::uint64_t steps = curve.losses.size();
  if (count_of_json(whole.at("steps"), "steps", most_steps) != steps)
    throw std::invalid_argument(fmt::format("steps is {}; expected {}, the number of losses",
                                            whole.at("steps").get<std::uint64_t>(), steps));
  for (const json& step : whole.at("skipped_steps"))
    curve.skipped.push_back(static_cast<int>(count_of_json(step, "skipped_steps", steps)));
  for (const machine::Dtype dtype : dtypes) {
    const std::string key(machine::name(dtype));
    curve.tolerance[key] = number_of_json(whole.at("tolerance").at(key), "tolerance");
  }
  return curve;
}

}  // namespace

std::string_view name(Against against) {
  constexpr std::string_view names[] = {"cpu", "stored", "none"};
  return names[static_cast<std::size_t>(against)];
}

const std::vector<std::string>& against_names() {
  static const std::vector<std::string> names{"cpu", "stored", "none"};
  return names;
}

Against parse_against(const std::string& text) {
  const auto found = std::ranges::find(against_names(), text);
  if (found == against_names().end())
    throw machine::UsageError(machine::unknown("--reference", text, against_names()));
  return static_cast<Against>(found - against_names().begin());
}

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
  for (const machine::Dtype dtype : dtypes) {
    TrainingConfig other = config;
    other.precision.dtype = dtype;
    curve.tolerance[std::string(machine::name(dtype))] = own + gradient_epsilon(other);
  }
  return curve;
}

StoredCurve read_curve(const std::string& path) {
  const MappedFile file(path);
  try {
    return parse(json::parse(file.text()));
  } catch (const json::exception& error) {
    throw FileError("{}: {}", path, printable(error.what()));
  } catch (const std::invalid_argument& error) {
    throw FileError("{}: {}", path, error.what());
  } catch (const machine::UsageError& error) {
    throw FileError("{}: {}", path, error.what());
  }
}

void write_curve(const std::string& path, const StoredCurve& curve) {
  json whole{{"format", format_name}};
  for (const auto& [key, value] : curve.configuration) whole["configuration"][key] = value;
  whole["configuration_hash"] = hash_of(curve.configuration);
  whole["dtype"] = curve.dtype;
  whole["judged"] = name(curve.judged);
  whole["steps"] = curve.losses.size();
  whole["losses"] = curve.losses;
  whole["skipped_steps"] = curve.skipped;
  for (const auto& [dtype, tolerance] : curve.tolerance) whole["tolerance"][dtype] = tolerance;
  const std::string text = whole.dump(1) + "\n";
  NewFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void check_curve(const std::string& path, const StoredCurve& curve, const CurveKeys& mine) {
  const auto value_in = [](const CurveKeys& keys, const std::string& key) {
    const auto found = std::ranges::find(keys, key, &CurveKeys::value_type::first);
    return found == keys.end() ? std::string("not set") : found->second;
  };
  for (const auto& [key, value] : mine)
    if (const std::string stored = value_in(curve.configuration, key); stored != value)
      throw FileError("{} is {}; expected {}, as in --reference-file {}", key, value,
                      printable(stored), path);
  for (const auto& [key, stored] : curve.configuration)
    if (value_in(mine, key) == "not set")
      throw FileError("{} is not set; expected {}, as in --reference-file {}", printable(key),
                      printable(stored), path);
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
