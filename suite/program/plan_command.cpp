// `shardmark plan`: the bytes of a training run, from its configuration, before it runs.

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"
#include "suite/plan/claims.h"
#include "suite/plan/model_shape.h"
#include "suite/plan/plan_report.h"
#include "suite/program/commands.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

// Reads "80GB", "7B" or "640GiB": units are decimal, or binary with an i.
using Units = std::vector<std::pair<std::string_view, double>>;

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

double parse_bytes(std::string_view flag, const std::string& text) {
  const Units decimal{{"GB", 1e9}, {"TB", 1e12}, {"MB", 1e6}, {"B", 1}};
  const Units binary{{"GiB", 0x1p30}, {"TiB", 0x1p40}, {"MiB", 0x1p20}};
  return parse_amount(flag, text, text.ends_with("iB") ? binary : decimal, "80GB or 80GiB");
}

struct Words {
  Sources sources;
  Machine machine;
  std::string json_file;
  bool explain = false, claims = false;
};

// Rejects unknown options. Words that are not our options must be Megatron-LM's arguments.
void check_megatron(const std::vector<std::string>& words, const std::vector<std::string>& own) {
  std::vector<std::string> known = megatron_names();
  const std::vector<std::string> taken = known;
  known.insert(known.end(), own.begin(), own.end());
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (!word.starts_with("--") || std::ranges::find(taken, name) != taken.end()) continue;
    const std::string near = machine::nearest(name, known);
    throw UsageError(
        near.empty() ? fmt::format("unknown flag '{}'; shardmark plan --help lists all flags",
                                   printable(name))
                     : fmt::format("unknown flag '{}'; did you mean '{}'?", printable(name), near));
  }
}

// Returns no value after printing the help.
std::optional<Words> parse(int argc, char** argv) {
  Words words;
  Sources& sources = words.sources;
  Options options(
      "plan", "[MEGATRON ARGUMENTS]",
      "Prints the bytes that a training run holds on a rank, for every ZeRO stage, before "
      "it runs.");
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
  options.group("Machine");
  options.number("--gpus", "N", sources.gpus, 1, 1'000'000, "GPUs of the run (default: 1)");
  options.number("--gpus-per-node", "N", words.machine.gpus_per_node, 1, 1024,
                 fmt::format("GPUs of a host (default: {})", words.machine.gpus_per_node));
  options.read(
      "--gpu-memory", "SIZE",
      [&words](const std::string& text) {
        words.machine.gpu_memory = parse_bytes("--gpu-memory", text);
      },
      "memory of one GPU: 80GB, 80GiB (default: 80GB)");
  options.read(
      "--cpu-memory", "SIZE",
      [&words](const std::string& text) {
        words.machine.cpu_memory = parse_bytes("--cpu-memory", text);
      },
      "memory of the host, per GPU (default: no limit)");
  options.group("Output");
  options.text("--json", "FILE", words.json_file, "write the plan as JSON");
  options.flag("--explain", words.explain,
               "add every key with its source, the formulas, and the bytes by category");
  options.flag("--claims", words.claims, "check published claims about memory with these formulas");
  if (!options.parse({argv + 2, argv + argc})) return std::nullopt;
  check_megatron(sources.words, options.names());
  return words;
}

void need_a_model(const TrainingConfig& training, bool configured) {
  const Model& model = training.model;
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

}  // namespace

int run_plan(int argc, char** argv) {
  const std::optional<Words> parsed = parse(argc, argv);
  if (!parsed) return harness::accepted;
  const Words& words = *parsed;
  if (words.claims) {
    fmt::print("{}", text(claims()));
    return harness::accepted;
  }
  if (!words.json_file.empty()) check_writable(words.json_file);
  const Resolved resolved = resolve(words.sources);
  need_a_model(resolved.config, !words.sources.deepspeed_file.empty());
  const Plan plan = make_plan(resolved, words.machine);
  fmt::print("{}", text(plan));
  if (words.explain) fmt::print("\n{}", explanation(plan));
  if (!words.json_file.empty()) {
    const std::string written = json(plan) + "\n";
    NewFile file(words.json_file);
    file.write(written.data(), written.size());
    file.commit();
    fmt::print("{}\n", words.json_file);
  }
  return harness::accepted;
}

}  // namespace suite::configuration
