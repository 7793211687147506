// `shardmark plan`: the bytes of a training run, from its configuration, before it runs.

#include <fmt/format.h>

#include <optional>

#include "harness/run/run.h"
#include "suite/claims/claims.h"
#include "suite/configuration/resolve.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"
#include "suite/plan/model_shape.h"
#include "suite/plan/plan_report.h"
#include "suite/plan/training_options.h"
#include "suite/program/commands.h"

namespace suite::configuration {
namespace {

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

// Returns no value after printing the help.
std::optional<Words> parse(int argc, char** argv) {
  Words words;
  Sources& sources = words.sources;
  Options options(
      "plan", "[MEGATRON ARGUMENTS]",
      "Prints the bytes that a training run holds on a rank, for every ZeRO stage, before "
      "it runs.");
  add_training_options(options, sources);
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
  options.flag("--claims", words.claims,
               "check statements about memory in five documents (predict --claims: all)");
  if (!options.parse({argv + 2, argv + argc})) return std::nullopt;
  check_megatron("plan", sources.words, options.names());
  return words;
}

}  // namespace

int run_plan(int argc, char** argv) {
  const std::optional<Words> parsed = parse(argc, argv);
  if (!parsed) return harness::accepted;
  const Words& words = *parsed;
  if (words.claims) {
    fmt::print("{}", text(all_claims(), true));
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
