#include "suite/plan/training_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "machine/base/names.h"
#include "suite/configuration/models.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {

double parse_amount(std::string_view flag, const std::string& text, const Units& units,
                    std::string_view example) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, size] : units)
    if (error == std::errc() && unit == name && value > 0 && value * size < 1e18)
      return value * size;
  reject("{} is '{}'; expected an amount (example: {})", flag, printable(text), example);
}

void add_training_options(Options& options, Sources& sources) {
  options.pass("", sources.words);
  options.footer(
      "Also takes Megatron-LM's arguments for the model, the degrees and the batch:\n"
      "--num-layers, --hidden-size, --tensor-model-parallel-size (--tp), --micro-batch-size, ...");
  options.group("Training");
  options.text("--config", "FILE", sources.deepspeed_file, "a ds_config.json");
  options.text("--megatron-arguments", "FILE", sources.megatron_file, "arguments of Megatron-LM");
  options.flag("--ignore-unknown-keys", sources.ignore_unknown,
               "warn about unsupported keys instead of failing");
  options.text("--model", "NAME", sources.model, fmt::format("{}", fmt::join(model_names(), ", ")));
  options.choices(model_names);
  options.read(
      "--parameters", "COUNT",
      [&sources](const std::string& text) {
        const double count = parse_amount(
            "--parameters", text, {{"B", 1e9}, {"M", 1e6}, {"T", 1e12}, {"K", 1e3}, {"", 1}},
            "7B, 1.3T or 125000000");
        sources.parameters = static_cast<std::int64_t>(std::llround(std::min(9e15, count)));
      },
      "instead of a model: 7B, 1.3T");
}

void check_megatron(std::string_view command, const std::vector<std::string>& words,
                    const std::vector<std::string>& own) {
  std::vector<std::string> known = megatron_names();
  const std::vector<std::string> taken = known;
  known.insert(known.end(), own.begin(), own.end());
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!word.starts_with("--") || std::ranges::find(taken, name) != taken.end()) continue;
    const std::string near = machine::nearest(name, known);
    throw harness::UsageError(
        near.empty() ? fmt::format("unknown flag '{}'; shardmark {} --help lists all flags",
                                   printable(name), command)
                     : fmt::format("unknown flag '{}'; did you mean '{}'?", printable(name), near));
  }
}

void need_a_model(const TrainingConfig& training, bool configured) {
  const TrainingConfig::Model& model = training.model;
  if (model.has_shape() || model.parameters > 0) return;
  std::string missing;
  for (const auto& [name, value] :
       {std::pair<std::string_view, std::int64_t>{"--num-layers", model.layers},
        {"--hidden-size", model.hidden},
        {"--num-attention-heads", model.heads},
        {"--seq-length", model.sequence}})
    if (value == 0) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  reject("{}no model is specified; give --model, --parameters, or {}",
         configured ? "the configuration is valid, but " : "", missing);
}

}  // namespace suite::configuration
