#include "suite/program/command_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "harness/unit/unit.h"
#include "machine/base/names.h"
#include "suite/files/traffic.h"

namespace suite {
namespace {

using harness::UsageError;

// Megatron's names are the axes; these are what everybody calls them.
const std::map<std::string, std::string> short_names{{"tensor-model-parallel-size", "tp"},
                                                     {"pipeline-model-parallel-size", "pp"},
                                                     {"data-parallel-size", "dp"}};

std::string default_out_dir() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string name = fmt::format("results/runs/{:%Y%m%dT%H%M%SZ}-{}",
                                       fmt::gmtime(std::time(nullptr)), host.data());
  std::string unused = name;  // by another run of this second
  std::error_code failed;
  for (int i = 2; std::filesystem::exists(unused, failed); ++i)
    unused = fmt::format("{}-{}", name, i);
  return unused;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

const std::vector<std::string> commands{"run",  "list",    "report",     "health",
                                        "data", "plan",    "collective", "compare",
                                        "ab",   "history", "scale"};

constexpr double acceptance_minutes = 25;
constexpr std::string_view passing_flags[] = {"--resume", "--out", "--max-minutes", "--timeout"};

void refuse_extras(const CLI::App& app) {
  for (const std::string& word : app.remaining()) {
    if (!app.get_parent() && !word.starts_with("-"))
      throw UsageError(machine::unknown("command", word, commands));
    throw UsageError(machine::unknown(word.starts_with("-") ? "flag" : "argument",
                                      word.substr(0, word.find('=')), option_names(app)));
  }
}

CommandLine parse(const std::vector<std::string>& given) {
  CommandLine line;
  line.words = given;
  std::vector<std::string> said = given, words;
  const bool wants_help = std::ranges::find(given, "--help") != given.end();
  if (!given.empty() && given.front() == "scale" && !wants_help) line.scaling = take_scaling(said);
  for (auto word = said.rbegin(); word != said.rend(); ++word) {  // CLI11 takes words last first
    if (word->starts_with("--benchmark_"))
      line.google_flags.insert(line.google_flags.begin(), *word);
    else
      words.push_back(*word);
  }

  CLI::App app(
      "Shardmark: measures and judges the stack that trains large language models across GPUs.",
      "shardmark");
  std::string profile = "quick", timing = "sample";
  app.require_subcommand(0, 1);
  CLI::App* run = app.add_subcommand("run", "measure and judge units");
  CLI::App* list = app.add_subcommand("list", "units, their axes and oracles");
  CLI::App* report = app.add_subcommand("report", "make report.html and junit.xml of a run again");
  CLI::App* health = app.add_subcommand(
      "health", "what a run says of its machines: 0 OK, 1 WARN, 2 CRITICAL; what to drain");
  CLI::App* data =
      app.add_subcommand("data", "write a text file's bytes as Megatron's token files");
  // Read by commands of their own, when they are the first word: configuration/plan_command.h,
  // nccl_tests/arguments.h, comparison/*_command.h.
  app.add_subcommand("plan", "memory of a training, from ds_config.json or Megatron's arguments");
  app.add_subcommand("collective", "measure one collective with nccl-tests' flags and table");
  app.add_subcommand("compare", "launches before and after a change: what became slower, or wrong");
  app.add_subcommand("ab", "the same cases under two environments, launched in turn");
  app.add_subcommand("history", "runs over time: where a case became slower or faster");
  CLI::App* scale = app.add_subcommand(
      "scale", "run units with one degree growing with the ranks; run's flags, too");
  std::string axis;
  bool strong = false, weak = false;
  scale->add_option("units", line.units, "units to run: gpt_step, llama_step, training_speed");
  scale->add_option("--axis", axis, "the degree that grows: dp, tp or pp");
  scale->add_flag("--strong", strong, "the same step on more ranks");
  scale->add_flag("--weak", weak, "a global batch that grows with the ranks");
  for (CLI::App* command : {run, list, report, health, data}) command->allow_extras();
  for (CLI::App* command : {run, list})
    command->add_option("--profile", profile, "smoke, quick, acceptance or paper")->capture_default_str();
  run->add_option("units", line.units, "units to run; all when none is named");
  run->add_option("--device", line.device, "host or cuda")->capture_default_str();
  run->add_option("--out", line.out_dir, "run directory; results/runs/TIME-HOST when not given");
  run->add_option("--hostfile", line.hostfile,
                  "hosts to start ranks on: lines such as worker-1 slots=4, or node[01-03]:8; this "
                  "host, or those of the Slurm job, when not given");
  run->add_option("--data", line.data_file,
                  "what gpt_step and training_speed train on: a text, bytes as tokens, or the "
                  "prefix of a pair of "
                  "Megatron's .bin and .idx; generated when not given");
  run->add_option("--load", line.load_file,
                  "GPT-2 weights that gpt_step and training_speed start from, a .safetensors file; "
                  "random when not given");
  run->add_option("--save", line.save_file,
                  "where gpt_step leaves its weights after ten steps, a .safetensors file");
  run->add_option("--config", line.deepspeed_file,
                  "a ds_config.json that gpt_step or training_speed is run with");
  run->add_option("--megatron-arguments", line.megatron_file,
                  "a file of Megatron-LM's arguments, likewise, beside it or alone");
  run->add_flag("--ignore-unknown-keys", line.ignore_unknown_keys,
                "keys of these that nothing honours become warnings");
  run->add_option("--seed", line.seed, "of all random values")->capture_default_str();
  run->add_option("--timeout", line.timeout_s, "seconds that one rank waits for another")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  run->add_option("--max-seconds", line.max_seconds, "of sampling, for one case")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  run->add_option("--max-minutes", line.max_minutes,
                  "of the run: no case begins later, and what is left is counted; 25 for the "
                  "profile acceptance, else without an end")
      ->check(CLI::PositiveNumber);
  run->add_option("--resume", line.resume_dir,
                  "a run directory: runs what of its cases is left, as its own command said");
  run->add_flag(
      "--no-limits", line.no_limits,
      "do not measure what this machine can do first, a few seconds; records then have no "
      "limit_s and limit_fraction");
  run->add_option("--timing", timing,
                  "sample, loop (back to back, as nccl-tests), window (a common start by the "
                  "clock) or armed "
                  "(--device cuda: all ranks queue their run, then all streams are let go)")
      ->capture_default_str();
  std::vector<std::string> faults;
  run->add_option(
         "--inject", faults,
         "a fault put in on purpose, KIND:KEY=VALUE,…, to see that it is named: such a run "
         "is never accepted (harness/run/inject.h, README)")
      ->allow_extra_args(false);
  for (CLI::App* command : {report, health})
    command->add_option("run", line.report_dir, "run directory")->required();
  data->add_option("text", line.text_file, "the text; each paragraph is a document")->required();
  data->add_option("--out", line.token_files, "PREFIX of PREFIX.bin and PREFIX.idx")->required();

  std::map<std::string, std::set<std::string>> units_of_axis;
  for (const harness::Family* family : harness::families())
    for (const harness::AxisInfo& axis : family->axes(harness::Profile::quick))
      units_of_axis[axis.name].emplace(family->name());
  std::map<std::string, std::string> axes;
  for (const auto& [axis, units] : units_of_axis) {
    const auto alias = short_names.find(axis);
    run->add_option(
           alias == short_names.end() ? "--" + axis : fmt::format("--{},--{}", axis, alias->second),
           axes[axis], fmt::format("axis of {}", fmt::join(units, ", ")))
        ->group("Axes: a value, a list (1,2,4) or a range (1KiB:64MiB:x4)");
  }

  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    CLI::App* asked = run->parsed()      ? run
                      : list->parsed()   ? list
                      : report->parsed() ? report
                      : health->parsed() ? health
                      : data->parsed()   ? data
                      : scale->parsed()  ? scale
                                         : &app;
    line.help = asked->help("shardmark");
    return line;
  } catch (const CLI::ExtrasError&) {
    refuse_extras(app);
    throw UsageError("unexpected words on the command line");
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  for (const CLI::App* command : {run, list, report, health, data})
    if (command->parsed()) refuse_extras(*command);
  if (!run->parsed() && !list->parsed() && !report->parsed() && !health->parsed() &&
      !data->parsed()) {
    if (!words.empty()) throw UsageError(machine::unknown("command", words.back(), commands));
    line.help = app.help();
    return line;
  }

  line.command = run->parsed()      ? CommandLine::Command::run
                 : list->parsed()   ? CommandLine::Command::list
                 : data->parsed()   ? CommandLine::Command::data
                 : health->parsed() ? CommandLine::Command::health
                                    : CommandLine::Command::report;
  line.profile = harness::parse_profile(profile);
  line.timing = harness::parse_timing(timing);
  for (const std::string& fault : faults) line.faults.push_back(harness::parse_fault(fault));
  if (line.device != "host" && line.device != "cuda")
    throw UsageError(machine::unknown("device", line.device, {"host", "cuda"}));
  if (line.timing == harness::Timing::armed && line.device == "host")
    throw UsageError(
        "--timing armed holds back a GPU's stream: it needs --device cuda; on the host use window");
  if (line.device == "cuda") harness::planned_device = machine::Device::Kind::cuda;
  for (const auto& [axis, text] : axes)
    if (run->get_option("--" + axis)->count() > 0) line.axes[axis] = text;
  if (line.units == std::vector<std::string>{"all_to_all_v"}) take_sizes_of_file(line.axes);
  line.out_dir_is_default = line.out_dir.empty();
  if (line.out_dir_is_default) line.out_dir = default_out_dir();
  return line;
}

// Without the flags that may differ between the launches of one run.
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

double CommandLine::run_seconds() const {
  const double usual = profile == harness::Profile::acceptance
                           ? acceptance_minutes
                           : std::numeric_limits<double>::infinity();
  return 60 * max_minutes.value_or(usual);
}

CommandLine parse_command_line(int argc, char** argv) {
  const CommandLine said = parse({argv + 1, argv + argc});
  if (said.command != CommandLine::Command::run || said.resume_dir.empty()) return said;
  harness::RunFile run = harness::read_finished(said.resume_dir);
  const std::vector<std::string> now = lasting(said.words), before = lasting(run.context.words);
  if (now.size() > 1 && now != before)
    throw UsageError(fmt::format(
        "--resume {0}: it was run with 'shardmark {1}', not with 'shardmark {2}'; 'shardmark run "
        "--resume {0}' alone continues it",
        said.resume_dir, fmt::join(before, " "), fmt::join(now, " ")));
  CommandLine line = parse(run.context.words);
  line.out_dir = line.resume_dir = said.resume_dir;
  line.out_dir_is_default = false;
  const auto is_timeout = [](const std::string& word) { return word.starts_with("--timeout"); };
  if (std::ranges::any_of(said.words, is_timeout)) line.timeout_s = said.timeout_s;
  if (said.max_minutes) line.max_minutes = said.max_minutes;
  line.continued = std::move(run);
  return line;
}

}  // namespace suite
