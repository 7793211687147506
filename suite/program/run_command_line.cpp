#include "suite/program/run_command_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>

#include "machine/base/names.h"
#include "suite/files/blended_tokens.h"
#include "suite/files/stored_curve.h"
#include "suite/files/traffic.h"
#include "suite/options/options.h"
#include "suite/predict/cluster.h"
#include "suite/program/axes_text.h"

namespace suite {

using harness::UsageError;

std::string default_out_dir() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("results/runs/{:%Y%m%dT%H%M%SZ}-{}",
                                       fmt::gmtime(std::time(nullptr)), host.data());
  std::string unused = name;  // another run of this second can have the name
  std::error_code failed;
  for (int i = 2; std::filesystem::exists(unused, failed); ++i)
    unused = fmt::format("{}-{}", name, i);
  return unused;
}

namespace {

constexpr double acceptance_minutes = 25;
// Sampling time of a case. The profile quick is for judging: its times only show whether a machine
// is far from its limits.
constexpr double quick_seconds = 0.15, usual_seconds = 1;
constexpr std::int64_t most_steps = 1'000'000'000'000;
const std::vector<std::string> output_formats{"table", "json", "csv"};
constexpr std::string_view passing_flags[] = {"--resume", "--out", "--max-minutes", "--timeout"};

// Texts that are parsed after all words are read.
struct Texts {
  std::string profile = "quick", timing = "sample", scaled_degree;
  std::vector<std::string> faults;
  bool strong = false, weak = false;
};

// lists_steps: in the help, the options of a training step.
void add_options(Options& options, RunCommandLine& line, Texts& texts, bool lists_steps) {
  options.arguments("UNIT", line.units, "a unit, or the name of a case");
  options.argument_choices(unit_names);
  options.pass("--benchmark_", line.options.google_flags);
  options.group("Cases and measuring");
  options.text("--profile", "NAME", texts.profile, "quick, acceptance or paper (default: quick)");
  options.choices(profile_names);
  options.read(
      "--filter", "REGEX",
      [&line](const std::string& text) {
        line.options.google_flags.push_back("--benchmark_filter=" + text);
      },
      "run cases whose names, short or with all axes, match; -REGEX: do not");
  options.text("--device", "KIND", line.device, "host or cuda (default: host)");
  options.choices(harness::device_names);
  options.number(
      "--seed", "N", line.seed, 0, std::numeric_limits<std::int64_t>::max(),
      fmt::format("seed for all random values (default: {})", harness::RunOptions().seed));
  options.positive("--max-seconds", "SECONDS", line.options.max_seconds_per_case,
                   "sampling time per case (default: 0.15 in quick, else 1)");
  options.positive("--max-minutes", "MINUTES", line.max_minutes,
                   "start no case later (default: 25 in acceptance, else none)");
  options.positive("--timeout", "SECONDS", line.timeout_s,
                   "timeout of one rank's wait for another (default: 60)");
  options.text("--timing", "KIND", texts.timing,
               "sample (default, after a barrier), loop, window (clock), armed (GPU)");
  options.choices([] {
    using enum harness::Timing;
    std::vector<std::string> names;
    for (const harness::Timing timing : {sample, loop, window, armed})
      names.emplace_back(name(timing));
    return names;
  });
  options.flag("--no-limits", line.no_limits, "do not measure the limits of this machine first");
  options.text("--expect", "NAME", line.expect,
               "a cluster (name or NAME.toml): compare times with its prediction");
  options.choices(predict::cluster_names);
  options.read(
      "--expect-floor", "N", [&line](const std::string& text) { read_floors(text, line.floors); },
      "minimum fraction of that speed (default: 0.8); KIND=N,...: by kind");
  options.texts("--inject", "KIND:KEY=VALUE,...", texts.faults,
                "inject a fault; the run is never accepted", false);

  options.group(lists_steps ? "Training step (gpt_step, training_speed)" : "");
  options.text("--config", "FILE", line.deepspeed_file, "a ds_config.json");
  options.text("--megatron-arguments", "FILE", line.megatron_file, "arguments of Megatron-LM");
  options.flag("--ignore-unknown-keys", line.ignore_unknown_keys,
               "warn about unsupported keys instead of failing");
  options.text("--data", "FILE", line.options.data_file,
               "text, or Megatron's .bin and .idx prefix (default: generated)");
  options.takes_following("--data-path", "[WEIGHT] PREFIX...", line.data_path,
                          "Megatron's token files, blended by weights and shuffled");
  options.text("--split", "A,B,C", line.split,
               "documents to train, validate and test on (default: 100)");
  options.text("--load", "FILE", line.options.load_file,
               "GPT-2 weights, .safetensors; a folder: continue its checkpoint");
  options.text("--save", "FILE", line.options.save_file,
               "weights after ten steps, .safetensors; a folder: checkpoints");
  harness::TrainingOptions& training = line.options.training;
  options.number("--train-iters", "N", training.train_iters, 1, most_steps,
                 "last step of a training with checkpoints (default: ten more)");
  options.number("--save-interval", "N", training.save_interval, 1, most_steps,
                 "steps from one checkpoint to the next (default: only the last)");
  options.flag("--async-save", training.async_save, "train on while a checkpoint is written");
  harness::LossReference& reference = line.options.reference;
  options.text("--reference", "KIND", reference.kind,
               "cpu (default): the step in double; stored: a loss curve; none");
  options.choices([] { return against_names(); });
  options.text("--reference-file", "FILE", reference.file, "loss curve of --reference stored");
  options.text("--save-reference", "FILE", reference.save, "write the loss curve of one case");

  options.group("Launch and output");
  options.text("--out", "DIR", line.out_dir, "run directory (default: results/runs/TIME-HOST)");
  options.flag("-v,--verbose", line.console.verbose, "print a line per case, also on a terminal");
  options.read(
      "--color", "KIND",
      [&line](const std::string& text) { line.color = harness::parse_color(text); },
      "auto (default), always or never");
  options.choices([] { return harness::color_names(); });
  options.read(
      "--output-format", "KIND",
      [&line](const std::string& text) {
        if (std::ranges::find(output_formats, text) == output_formats.end())
          throw UsageError(machine::unknown("--output-format", text, output_formats));
        line.prints_results = text != output_formats[0];
        if (line.prints_results) line.options.google_flags.push_back("--benchmark_format=" + text);
      },
      "table (default); json or csv: Google Benchmark's on stdout");
  options.choices([] { return output_formats; });
  options.number("--durations", "N", line.console.durations, 0, 1000,
                 "list the N longest cases at the end");
  options.text("--resume", "DIR", line.resume_dir,
               "run the remaining cases of this run directory with the original options");
  options.text("--hostfile", "FILE", line.hostfile,
               "lines worker-1 slots=4 or node[01-03]:8 (default: this host)");
}

void add_scaling_options(Options& options, Texts& texts) {
  options.group("Scaling");
  options.text("--axis", "DEGREE", texts.scaled_degree, "the degree that grows: dp, tp, pp or cp");
  options.flag("--strong", texts.strong, "the same step on more ranks");
  options.flag("--weak", texts.weak, "a global batch that grows with the ranks");
}

void check(RunCommandLine& line, const Texts& texts) {
  line.profile = harness::parse_profile(texts.profile);
  if (line.options.max_seconds_per_case == 0)  // not given
    line.options.max_seconds_per_case =
        line.profile == harness::Profile::quick ? quick_seconds : usual_seconds;
  if (!line.expect.empty()) predict::read_cluster(line.expect);
  if (line.expect.empty() && line.floors != default_floors())
    reject("--expect-floor requires --expect CLUSTER");
  line.options.timing = harness::parse_timing(texts.timing);
  for (const std::string& fault : texts.faults) line.faults.push_back(harness::parse_fault(fault));
  harness::parse_device(line.device);
  if (!line.split.empty() && line.data_path.empty()) reject("--split requires --data-path");
  if (!line.data_path.empty()) {
    if (!line.options.data_file.empty()) reject("--data conflicts with --data-path");
    line.options.data_file = fmt::format("--data-path {}{}{}", fmt::join(line.data_path, " "),
                                         line.split.empty() ? "" : " --split ", line.split);
    parse_data_path(line.options.data_file);
  }
  if (line.options.timing == harness::Timing::armed && line.device == "host")
    reject("--timing armed requires --device cuda (got host); on the host use --timing window");
  if (line.units == std::vector<std::string>{"all_to_all_v"}) take_sizes_of_file(line.axes);
  line.out_dir_is_default = line.out_dir.empty();
  if (line.out_dir_is_default) line.out_dir = default_out_dir();
}

std::optional<RunCommandLine> parse(const std::vector<std::string>& words) {
  RunCommandLine line;
  line.words = words;
  line.options.max_seconds_per_case = 0;  // until check()
  Texts texts;
  const bool scales = words.front() == "scale";
  // The help of a unit has no description, to leave room for the unit's axes.
  bool names_unit = false, names_step = false;
  for (const harness::Family* family : harness::families()) {
    if (std::ranges::find(words, family->name()) == words.end()) continue;
    names_unit = true;
    names_step = names_step || std::ranges::any_of(family->axes({}), [](const auto& axis) {
                   return axis.name == "global-batch-size";
                 });
  }
  Options options(words.front(), "[UNIT...]",
                  names_unit ? ""
                  : scales   ? "Runs units while one degree grows with the ranks. Also takes the "
                               "options of run."
                             : "Measures and judges units; all units if none is named.");
  if (scales) add_scaling_options(options, texts);
  add_options(options, line, texts, names_step || !names_unit);
  options.group("");
  std::set<std::string> axes;
  for (const harness::Family* family : harness::families())
    for (const harness::AxisInfo& axis : family->axes({}))
      if (axes.insert(axis.name).second) {
        options.read(
            axis_options(axis.name), "VALUES",
            [&line, name = axis.name](const std::string& text) { line.axes[name] = text; }, "axis");
        options.choices([&line, name = axis.name] { return axis_values(line.units, name); });
      }
  options.footer([&] {
    if (texts.profile != "quick") line.profile = harness::parse_profile(texts.profile);
    return line.units.empty() ? "shardmark run UNIT --help lists the axes of a unit; shardmark "
                                "list lists the units."
                              : axes_help(line.units, line.request());
  });
  if (!options.parse({words.begin() + 1, words.end()})) return std::nullopt;
  if (scales) line.scaling = scaling_of(texts.scaled_degree, texts.strong, texts.weak);
  check(line, texts);
  return line;
}

// Removes the flags that may differ between the launches of one run.
std::vector<std::string> lasting(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string flag = words[i].substr(0, words[i].find('='));
    const bool passes = std::ranges::find(passing_flags, flag) != std::end(passing_flags);
    if (!passes)
      kept.push_back(words[i]);
    else if (flag == words[i])
      ++i;  // its value
  }
  return kept;
}

}  // namespace

harness::PlanRequest RunCommandLine::request() const {
  return {profile, axes, harness::parse_device(device)};
}

double RunCommandLine::run_seconds() const {
  const double usual = profile == harness::Profile::acceptance
                           ? acceptance_minutes
                           : std::numeric_limits<double>::infinity();
  return 60 * max_minutes.value_or(usual);
}

std::optional<RunCommandLine> parse_run_command_line(const std::vector<std::string>& words) {
  const std::optional<RunCommandLine> said = parse(words);
  if (!said || said->resume_dir.empty()) return said;
  harness::RunFile run = harness::read_finished(said->resume_dir);
  const std::vector<std::string> now = lasting(said->words), before = lasting(run.context.words);
  if (before.empty() || (before[0] != "run" && before[0] != "scale"))
    reject("--resume {}: its run.json has no command", said->resume_dir);
  if (now.size() > 1 && now != before)
    reject(
        "--resume {0}: the run's command is 'shardmark {1}', not 'shardmark {2}'; 'shardmark run "
        "--resume {0}' continues it",
        said->resume_dir, fmt::join(before, " "), fmt::join(now, " "));
  std::optional<RunCommandLine> line = parse(run.context.words);
  if (!line) reject("--resume {}: it has no command of a run", said->resume_dir);
  line->out_dir = line->resume_dir = said->resume_dir;
  line->out_dir_is_default = false;
  if (said->timeout_s) line->timeout_s = said->timeout_s;
  if (said->max_minutes) line->max_minutes = said->max_minutes;
  line->continued = std::move(run);
  return line;
}

}  // namespace suite
