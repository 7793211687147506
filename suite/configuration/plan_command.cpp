#include "suite/configuration/plan_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/configuration/claims.h"
#include "suite/configuration/model_shape.h"
#include "suite/configuration/plan_report.h"
#include "suite/configuration/resolve.h"
#include "suite/configuration/sources.h"
#include "suite/files/new_file.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

// "80GB", "7B", "640GiB": decimal units of memory as the literature has them, binary with an i.
double parse_amount(std::string_view flag, const std::string& text,
                    const std::vector<std::pair<std::string_view, double>>& units,
                    std::string_view example) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, size] : units)
    if (error == std::errc() && unit == name && value > 0 && value * size < 1e18)
      return value * size;
  throw UsageError(fmt::format("{} '{}' is not like {}", flag, printable(text), example));
}
double parse_bytes(std::string_view flag, const std::string& text) {
  return parse_amount(flag, text,
                      {{"GB", 1e9},
                       {"TB", 1e12},
                       {"MB", 1e6},
                       {"GiB", 0x1p30},
                       {"TiB", 0x1p40},
                       {"MiB", 0x1p20},
                       {"B", 1}},
                      "80GB or 80GiB");
}

struct Options {
  Sources sources;
  Machine machine;
  std::string json_file, help;
  bool claims = false;
};

Options parse(int argc, char** argv) {
  Options options;
  Sources& sources = options.sources;
  std::string gpu_memory = "80GB", cpu_memory, parameters;
  CLI::App app("Bytes that a training holds on a rank, for every ZeRO stage, before it runs.",
               "shardmark plan");
  app.allow_extras();
  app.footer(
      "Megatron-LM's arguments for the model, the degrees and the batch are taken too:\n"
      "--num-layers, --hidden-size, --tensor-model-parallel-size (--tp), "
      "--micro-batch-size, ...");
  app.add_option("--config", sources.deepspeed_file, "DeepSpeed's ds_config.json");
  app.add_option("--megatron-arguments", sources.megatron_file,
                 "a file of Megatron-LM's arguments");
  app.add_option("--gpus", sources.gpus, "GPUs of the run")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--gpu-memory", gpu_memory, "of one GPU: 80GB, 80GiB")->capture_default_str();
  app.add_option("--cpu-memory", cpu_memory, "of the host, for each GPU; no limit when not given");
  app.add_option("--gpus-per-node", options.machine.gpus_per_node, "GPUs of a host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--model", sources.model, fmt::format("{}", fmt::join(shape_names(), ", ")));
  app.add_option("--parameters", parameters, "in place of a model: 7B, 1.3T");
  app.add_option("--json", options.json_file, "write the plan as JSON");
  app.add_flag("--ignore-unknown-keys", sources.ignore_unknown,
               "keys that nothing honours become warnings");
  app.add_flag("--claims", options.claims, "check what is said about memory, by the same formulas");
  std::vector<std::string> words(argv + 2, argv + argc);
  std::reverse(words.begin(), words.end());  // CLI11 takes them last first
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    options.help = app.help();
    return options;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  sources.words = app.remaining();
  for (const std::string& word : sources.words) {
    std::vector<std::string> known = megatron_names();
    const std::string name = word.substr(0, word.find('='));
    if (!word.starts_with("--") || name == "--tp" || name == "--pp" || name == "--cp" ||
        std::ranges::find(known, name) != known.end())
      continue;
    for (const CLI::Option* option : app.get_options())
      for (const std::string& own : option->get_lnames()) known.push_back("--" + own);
    const std::string near = machine::nearest(name, known);
    throw UsageError(
        near.empty() ? fmt::format("unknown flag '{}'; shardmark plan --help lists "
                                   "those that there are",
                                   printable(name))
                     : fmt::format("unknown flag '{}'; did you mean '{}'?", printable(name), near));
  }
  options.machine.gpu_memory = parse_bytes("--gpu-memory", gpu_memory);
  if (!cpu_memory.empty()) options.machine.cpu_memory = parse_bytes("--cpu-memory", cpu_memory);
  if (!parameters.empty())
    sources.parameters = static_cast<std::int64_t>(std::llround(
        std::min(9e15, parse_amount("--parameters", parameters,
                                    {{"B", 1e9}, {"M", 1e6}, {"T", 1e12}, {"K", 1e3}, {"", 1}},
                                    "7B, 1.3T or 125000000"))));
  return options;
}

void need_a_model(const Training& training, bool configured) {
  const Model& model = training.model;
  if (has_shape(model) || model.parameters > 0) return;
  std::string missing;
  for (const auto& [name, value] :
       {std::pair<std::string_view, std::int64_t>{"--num-layers", model.num_layers},
        {"--hidden-size", model.hidden_size},
        {"--num-attention-heads", model.num_attention_heads},
        {"--seq-length", model.seq_length}})
    if (value == 0) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  throw UsageError(fmt::format("{}no model to plan for: give --model, --parameters, or {}",
                               configured ? "the configuration is read, but there is " : "",
                               missing));
}

}  // namespace

int run_plan(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!options.help.empty()) {
    fmt::print("{}", options.help);
    return harness::accepted;
  }
  if (options.claims) {
    fmt::print("{}", text(claims()));
    return harness::accepted;
  }
  if (!options.json_file.empty()) check_writable(options.json_file);
  const Resolved resolved = resolve(options.sources);
  need_a_model(resolved.training, !options.sources.deepspeed_file.empty());
  const Plan plan = make_plan(resolved, options.machine);
  fmt::print("{}", text(plan));
  if (!options.json_file.empty()) {
    const std::string written = json(plan) + "\n";
    NewFile file(options.json_file);
    file.write(written.data(), written.size());
    file.commit();
    fmt::print("{}\n", options.json_file);
  }
  return harness::accepted;
}

}  // namespace suite::configuration
