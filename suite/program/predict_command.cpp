// `shardmark predict`: the time of a training step on a cluster, before it runs.

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/report/figures.h"
#include "harness/run/run.h"
#include "suite/claims/claims.h"
#include "suite/configuration/keys.h"
#include "suite/configuration/models.h"
#include "suite/expectation/compared_runs.h"
#include "suite/expectation/measured_cluster.h"
#include "suite/files/new_file.h"
#include "suite/options/options.h"
#include "suite/plan/training_options.h"
#include "suite/predict/published.h"
#include "suite/predict/report.h"
#include "suite/predict/scaling_figures.h"
#include "suite/predict/search/objective.h"
#include "suite/predict/search/rules.h"
#include "suite/predict/search/search.h"
#include "suite/program/commands.h"

namespace suite {
namespace {

struct Words {
  configuration::Sources sources;
  std::string cluster = "dgx_h100", software = "megatron_core", objective = "time", json_file;
  std::string arguments_file, config_file, figures_dir, measured;
  double gpu_memory = 0;
  bool explain = false, published = false, search = false, claims = false, rules = false;
};

// Adds the keys of a training step that no file and no argument of Megatron-LM has.
void add_own_keys(Options& options, configuration::Sources& sources) {
  options.group("Keys that only this program has");
  TrainingConfig fresh;
  for (const configuration::Key& key : configuration::keys()) {
    const bool own = key.megatron.empty() && key.deepspeed.empty() && key.field &&
                     key.axis != "dtype" && key.axis != "data-parallel-size";
    if (!own || key.predicted.taken != configuration::Taken::counted) continue;
    const std::string axis(key.axis);
    const configuration::Kind kind = key.field(fresh).kind();
    const bool counts = kind == configuration::Kind::whole || kind == configuration::Kind::number;
    options.read(
        "--" + axis, counts ? "N" : "NAME",
        [&sources, axis](const std::string& text) { sources.axes[axis] = text; },
        std::string(key.about));
    options.choices([&key] { return key.limits.choices; });
  }
}

// Each of these prints a report of its own. --figures draws one of the search, or one of scaling
// and of --measured.
void refuse_two_reports(const Words& words) {
  const std::pair<bool, std::string_view> reports[] = {{words.search, "--search"},
                                                       {words.rules, "--rules"},
                                                       {words.claims, "--claims"},
                                                       {words.published, "--published"},
                                                       {!words.measured.empty(), "--measured"}};
  std::vector<std::string_view> given;
  for (const auto& [is_given, name] : reports)
    if (is_given) given.push_back(name);
  const bool draws = !words.figures_dir.empty();
  if (draws && !given.empty() && !words.search && words.measured.empty())
    given.emplace_back("--figures");
  if (given.size() > 1) reject("give one of {}", fmt::join(given, ", "));
}

// Returns no value after printing the help.
std::optional<Words> parse(int argc, char** argv) {
  Words words;
  Options options("predict", "[MEGATRON ARGUMENTS]",
                  "Prints the time of a training step on a cluster, before it runs: computation, "
                  "communication, bubble, memory, energy.");
  add_training_options(options, words.sources);
  add_own_keys(options, words.sources);
  options.group("Cluster");
  options.text("--cluster", "NAME", words.cluster,
               fmt::format("a file NAME.toml, or {} (default: {})",
                           fmt::join(predict::cluster_names(), ", "), words.cluster));
  options.choices(predict::cluster_names);
  options.number("--gpus", "N", words.sources.gpus, 1, 1'000'000, "GPUs of the run (default: 1)");
  options.text("--software", "NAME", words.software,
               fmt::format("overlap and volumes of a program: {} (default: {})",
                           fmt::join(predict::software_names(), ", "), words.software));
  options.choices(predict::software_names);
  options.group("Search");
  options.flag("--search", words.search,
               "find the fastest degrees, ZeRO stage, micro-batch, recomputation and schedule");
  options.text("--objective", "NAME", words.objective,
               "time (default); sequence: longest; model: most layers; gpus: fewest");
  options.choices(predict::objective_names);
  options.positive("--gpu-memory-gb", "N", words.gpu_memory,
                   "memory that a GPU may hold, in GB (default: the cluster's)");
  options.text("--write-arguments", "FILE", words.arguments_file,
               "write Megatron-LM's arguments of the fastest");
  options.text("--write-config", "FILE", words.config_file,
               "write the ds_config.json of the fastest");
  options.flag("--rules", words.rules,
               "compare rules of thumb for the degrees with the fastest of six models");
  options.group("Output");
  options.text("--json", "FILE", words.json_file, "write the prediction as JSON");
  options.flag("--explain", words.explain,
               "add the formulas, the numbers of the cluster, and every key with its source");
  options.text("--figures", "DIR", words.figures_dir,
               "write figures and CSV files of scaling, memory and communication; with --search: "
               "the fastest step for each memory");
  options.flag("--claims", words.claims,
               "recompute 110 statements of five documents: holds, holds if, fails, open");
  options.flag("--published", words.published, "compare predictions with published runs");
  options.text("--measured", "DIR", words.measured,
               "compare runs (comma-separated) with predictions for --cluster; also in --figures");
  if (!options.parse({argv + 2, argv + argc})) return std::nullopt;
  configuration::check_megatron("predict", words.sources.words, options.names());
  return words;
}

const predict::Software& software_of(const Words& words) try {
  return predict::find_software(words.software);
} catch (const std::invalid_argument& error) {
  throw harness::UsageError(error.what());
}

predict::Objective objective_of(const Words& words) try {
  return predict::parse_objective(words.objective);
} catch (const std::invalid_argument& error) {
  throw harness::UsageError(error.what());
}

predict::Report report_of(const configuration::Resolved& resolved, const Words& words) {
  TrainingConfig config = resolved.config;
  if (config.model.tokens > 0)
    config.model.vocabulary = padded_vocabulary(config.model, config.degrees.tp);
  try {
    predict::Report report;
    report.config = config;
    report.cluster = predict::read_cluster(words.cluster);
    report.software = software_of(words);
    report.prediction = predict::predict_step(config, report.cluster, report.software);
    const double error = predict::error_quantile(predict::compare_published(), 0.9);
    report.prediction.low_s /= 1 + error;
    report.prediction.high_s *= 1 + error;
    return report;
  } catch (const std::invalid_argument& error) {
    throw harness::UsageError(error.what());
  }
}

void write(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  NewFile file(path);
  file.write(text.data(), text.size());
  file.commit();
  fmt::print("{}\n", path);
}

// Returns the cases of --measured that have a prediction.
std::vector<ComparedCase> measured_cases(const Words& words, const predict::Cluster& cluster) {
  std::vector<ComparedCase> all;
  if (words.measured.empty()) return all;
  for (const std::string& path : split_list(words.measured)) {
    const harness::RunFile run = harness::read_run(path);
    const bool on_gpu = machine_of(run.context.out_dir).is_gpu();
    for (ComparedCase& one : compare_runs(run.records, Expectation(cluster, on_gpu, {})))
      all.push_back(std::move(one));
  }
  if (all.empty())
    reject("--measured {}: no case has a prediction for cluster {}", words.measured, cluster.name);
  return all;
}

int draw(const std::vector<predict::ScalingFigure>& figures, const predict::Cluster& cluster,
         const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  write(directory + "/predict.json", json(figures, cluster));
  const harness::Figures drawn = harness::figures_of(directory, true);
  if (!drawn.missing.empty()) return complain(harness::environment, drawn.missing);
  fmt::print("{} figures and their CSV files: {}/figures\n", drawn.figures.size(), directory);
  return harness::accepted;
}

int draw_scaling(const Words& words) {
  const predict::Cluster cluster = predict::read_cluster(words.cluster);
  std::vector<predict::ScalingFigure> all = predict::scaling_figures(cluster, software_of(words));
  for (predict::ScalingFigure& one : figures(measured_cases(words, cluster)))
    all.push_back(std::move(one));
  return draw(all, cluster, words.figures_dir);
}

int search(const configuration::Resolved& resolved, const Words& words) {
  const predict::Cluster cluster = predict::read_cluster(words.cluster);
  const predict::Objective objective = objective_of(words);
  const double gpu_memory = words.gpu_memory > 0 ? words.gpu_memory * 1e9 : cluster.gpu.memory;
  predict::Reached reached =
      predict::reach(objective, resolved.config, cluster, static_cast<int>(words.sources.gpus),
                     software_of(words), gpu_memory);
  const predict::Found& found = reached.found;
  fmt::print("{}", text(objective, reached));
  fmt::print("{}", text(found));
  if (found.best.empty())
    throw harness::UsageError(
        fmt::format("no configuration of {} GPUs fits; give more GPUs, or a smaller model",
                    words.sources.gpus));
  const TrainingConfig& chosen = found.best.front().config;
  fmt::print("\n{}", predict::megatron_arguments(chosen));
  write(words.arguments_file, predict::megatron_arguments(chosen));
  write(words.config_file, predict::deepspeed_config(chosen));
  if (words.figures_dir.empty()) return harness::accepted;
  return draw({predict::pareto_figure(reached.candidates.pareto())}, cluster, words.figures_dir);
}

}  // namespace

int run_predict(int argc, char** argv) {
  const std::optional<Words> parsed = parse(argc, argv);
  if (!parsed) return harness::accepted;
  const Words& words = *parsed;
  refuse_two_reports(words);
  if (!words.figures_dir.empty() && !words.search) return draw_scaling(words);
  if (words.claims) {
    fmt::print("{}", text(all_claims()));
    return harness::accepted;
  }
  if (words.rules) {
    const predict::Cluster cluster = predict::read_cluster(words.cluster);
    fmt::print("{}: ", cluster.name);
    fmt::print("{}", text(predict::check_rules(cluster, software_of(words))));
    return harness::accepted;
  }
  if (!words.measured.empty()) {
    fmt::print("{}", text(measured_cases(words, predict::read_cluster(words.cluster))));
    return harness::accepted;
  }
  if (words.published) {
    fmt::print("{}", text(predict::compare_published()));
    return harness::accepted;
  }
  if (words.objective != "time" && !words.search) reject("--objective requires --search");
  if (!words.json_file.empty()) check_writable(words.json_file);
  configuration::Sources sources = words.sources;
  if (words.search) sources.gpus = 1;  // the search chooses the data-parallel size
  const configuration::Resolved resolved = resolve(sources);
  configuration::need_a_model(resolved.config, !words.sources.deepspeed_file.empty());
  if (!resolved.config.model.has_shape())
    throw harness::UsageError(
        "predict requires a model's shape; give --model or --num-layers, --hidden-size, "
        "--num-attention-heads and --seq-length");
  if (words.search) return search(resolved, words);
  const predict::Report report = report_of(resolved, words);
  fmt::print("{}", text(report));
  if (words.explain) fmt::print("\n{}", explanation(report, resolved));
  write(words.json_file, json(report) + "\n");
  return harness::accepted;
}

}  // namespace suite
