// The program: `shardmark list`, `shardmark run`, `shardmark scale`, `shardmark report`, `shardmark
// data`, `shardmark plan`, `shardmark collective`, `shardmark compare`, `shardmark ab`, `shardmark
// history`.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <memory>

#include "harness/compare/comparable.h"
#include "harness/diagnose/health.h"
#include "harness/record/fingerprint.h"
#include "harness/record/run_json.h"
#include "harness/record/running_case.h"
#include "harness/report/console.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/run/google_front.h"
#include "harness/run/run.h"
#include "harness/run/supervisor.h"
#include "harness/run/watchdog.h"
#include "harness/unit/unit.h"
#include "machine/base/error.h"
#include "machine/world/mpi_world.h"
#include "suite/configuration/plan_command.h"
#include "suite/configuration/resolve.h"
#include "suite/configuration/step_config.h"
#include "suite/files/corpus.h"
#include "suite/files/safetensors.h"
#include "suite/files/text_tokens.h"
#include "suite/program/ab_command.h"
#include "suite/program/collective_command.h"
#include "suite/program/command_line.h"
#include "suite/program/compare_command.h"
#include "suite/program/history_command.h"
#include "suite/program/launch.h"
#include "suite/training_step/step_case.h"

namespace suite {
namespace {

int complain(int code, std::string_view text) {
  fmt::print(stderr, "shardmark: {}\n", text);
  return code;
}

int list_units(const CommandLine& line) {
  for (const harness::Family* family : harness::families()) {
    fmt::print("{}: {}\n", family->name(), family->about());
    std::vector<std::string_view> oracles;
    for (const harness::Oracle oracle : family->oracles()) oracles.push_back(name(oracle));
    fmt::print("  oracles: {}\n", fmt::join(oracles, ", "));
    std::vector<std::pair<std::string, int>> slices;  // and how many cases
    for (const harness::PlannedCase& plan : family->cases(line.profile, {})) {
      auto found = std::ranges::find(slices, plan.slice, &std::pair<std::string, int>::first);
      if (found == slices.end()) found = slices.insert(slices.end(), {plan.slice, 0});
      ++found->second;
    }
    for (const auto& [slice, cases] : slices)
      fmt::print("  slice {}: {} case{}\n", slice, cases, cases == 1 ? "" : "s");
    for (const harness::AxisInfo& axis : family->axes(line.profile)) {
      fmt::print("  --{} {}", axis.name, fmt::join(axis.values, ","));
      if (!axis.allowed.empty()) fmt::print("  (of {})", fmt::join(axis.allowed, ", "));
      fmt::print("\n");
    }
  }
  return harness::accepted;
}

void write_reports(const std::string& directory) {
  harness::write_junit(directory);
  harness::write_report(directory);
}

// The end is told after the report is written, so that the path it names is there.
class ReportThenTell final : public harness::Progress {
 public:
  explicit ReportThenTell(harness::Progress& progress) : progress_(progress) {}
  void start(std::size_t cases) override { progress_.start(cases); }
  void case_started(const std::string& name) override { progress_.case_started(name); }
  void case_done(const harness::Record& record) override { progress_.case_done(record); }
  void finish(const harness::RunContext& context,
              const std::vector<harness::Record>& records) override {
    context_ = context;
    records_ = records;
    finished_ = true;
  }
  // Why there is no report, or empty.
  std::string tell() {
    std::string unwritten;
    if (!finished_) return unwritten;
    try {
      write_reports(context_.out_dir);
    } catch (const std::exception& error) {
      unwritten = error.what();
      context_.out_dir.clear();  // there is no report to name
    }
    progress_.finish(context_, records_);
    if (unwritten.empty())
      fmt::print("{}", harness::health_text(harness::health_of(context_.out_dir)));
    return unwritten;
  }

 private:
  harness::Progress& progress_;
  harness::RunContext context_;
  std::vector<harness::Record> records_;
  bool finished_ = false;
};

// Before any rank is started: what can be known to be wrong already.
void check_files(const CommandLine& line, const std::vector<harness::PlannedCase>& cases,
                 const std::vector<std::size_t>& selected) {
  if (!line.data_file.empty()) Corpus::check(line.data_file);
  const auto selected_of = [&](std::string_view unit) {
    return std::ranges::count_if(selected,
                                 [&](std::size_t index) { return cases[index].unit == unit; });
  };
  const auto steps = selected_of("gpt_step");
  if (!line.load_file.empty()) {
    const Safetensors weights(line.load_file);
    if (steps + selected_of("training_speed") == 0)
      throw harness::UsageError(
          "--load is for gpt_step and training_speed; no case of them is selected");
  }
  if (!line.save_file.empty()) {
    if (steps != 1)
      throw harness::UsageError(fmt::format(
          "--save needs exactly one case of gpt_step, but {} are selected; --benchmark_list_tests "
          "lists them",
          steps));
    check_writable(line.save_file);
    std::error_code ignored;
    if (std::filesystem::equivalent(line.save_file, line.load_file, ignored))
      throw harness::UsageError(fmt::format(
          "--save {} would overwrite what --load reads while it is judged", line.save_file));
  }
  const harness::Files files{line.data_file, line.load_file, line.save_file};
  for (const std::size_t index : selected) cases[index].check_files(files);
}

void choose_device(machine::World& world, const std::string& device) {
  if (device == "host") return;
  if (!machine::cuda::built())
    throw machine::MachineError(
        "device cuda: this program was built without CUDA (preset cuda has it)");
  const int count = machine::cuda::count();
  if (count == 0)
    throw machine::MachineError("device cuda: no CUDA device or no driver on this host");
  int index = 0;
  for (int other = 0; other < world.rank(); ++other)
    index += world.host(other) == world.host(world.rank());
  world.use_device(machine::cuda::make_device(index % count));
}

// Everybody must agree whether to begin.
template <class Work>
int together(machine::World& world, const Work& work) {
  std::string mine = "0";
  try {
    work();
  } catch (const harness::UsageError& error) {
    mine = fmt::format("{}{}", static_cast<int>(harness::usage), error.what());
  } catch (const machine::MachineError& error) {
    mine = fmt::format("{}{}", static_cast<int>(harness::environment), error.what());
  }
  for (const std::string& outcome : world.all_gather(world.group(), mine))
    if (outcome != "0") {
      if (world.rank() == 0) complain(0, outcome.substr(1));
      return outcome[0] - '0';
    }
  return 0;
}

// What decides, beside its name, how a case is measured and on which values.
harness::OptionTexts how_it_measures(const CommandLine& line) {
  return {{"device", line.device},
          {"seed", std::to_string(line.seed)},
          {"max_seconds", fmt::format("{}", line.max_seconds)},
          {"timing", std::string(name(line.timing))},
          {"data", line.data_file},
          {"load", line.load_file}};
}

harness::RunContext context_of(const CommandLine& line, const std::string& configuration) {
  harness::RunContext context;
  if (line.continued) {
    context = line.continued->context;
    context.status = "running";
    context.status_reason.clear();
    context.failure.reset();
    context.not_run = 0;
    context.resumed.push_back(
        fmt::format("{:%Y-%m-%dT%H:%M:%S}+00:00", fmt::gmtime(std::time(nullptr))));
  } else {
    context.profile = name(line.profile);
    context.words = line.words;
    context.command = fmt::format("shardmark {}", fmt::join(line.words, " "));
    context.configuration = configuration;
  }
  context.out_dir = line.out_dir;
  return context;
}

int run_rank(const CommandLine& line, const std::vector<harness::PlannedCase>& cases,
             const std::string& configuration) {
  harness::Console console(stdout);
  console.end_after(line.run_seconds());
  ReportThenTell progress(console);
  int code = harness::accepted;
  int rank = 0;
  {
    const auto world = machine::make_mpi_world(line.timeout_s);
    harness::Injection injection(line.faults, *world);
    rank = world->rank();
    // One named after the time may be another on every rank.
    const std::string out_dir = world->broadcast(world->group(), 0, line.out_dir);
    harness::RunOptions options;
    options.context = context_of(line, configuration);
    options.context.out_dir = out_dir;
    options.context.injected = injection.texts();
    if (!line.faults.empty()) options.injection = &injection;
    if (line.continued) options.finished = line.continued->records;
    options.data_file = line.data_file;
    options.load_file = line.load_file;
    options.save_file = line.save_file;
    options.seed = line.seed;
    options.max_seconds_per_case = line.max_seconds;
    options.max_seconds = line.run_seconds();
    options.timing = line.timing;
    options.google_flags = line.google_flags;
    // What a faulty run reaches is held against nothing.
    options.measure_rates = !line.no_limits && line.faults.empty();
    std::unique_ptr<harness::Sink> sink;
    code = together(*world, [&] { choose_device(*world, line.device); });
    if (code != harness::accepted) return exit_code_of_rank(rank, code);
    const std::string environment =
        harness::gather_environment(*world, how_it_measures(line), injection.versions());
    code = together(*world, [&] {
      check_ranks(line.faults, world->size());
      if (rank != 0) return;
      if (line.continued)
        harness::refuse_another(out_dir, *line.continued, environment, configuration);
      sink = harness::write_to(options.context, out_dir, line.continued.has_value(),
                               world->faults().disk);
      if (!line.continued)
        harness::write_file(out_dir + "/environment.json", environment, world->faults().disk);
    });
    if (code != harness::accepted) return exit_code_of_rank(rank, code);
    options.sink = sink.get();
    std::vector<std::string> names;
    for (const harness::PlannedCase& plan : cases) names.push_back(plan.name);
    harness::Watchdog watchdog(*world, out_dir, line.timeout_s, std::move(names), sink.get());
    try {
      code = harness::run(*world, cases, options, progress);
    } catch (const harness::UsageError& error) {
      if (rank == 0) complain(0, error.what());
      code = harness::usage;
    } catch (const harness::Unwritten& error) {
      code = complain(harness::environment, error.what());
    } catch (const std::exception& error) {
      watchdog.give_up(machine::failure_of(error));
    }
  }
  const std::string unwritten = progress.tell();
  if (!unwritten.empty() && code != harness::environment)
    code = complain(harness::environment, unwritten);
  return exit_code_of_rank(rank, code);
}

// When no rank was left to report: what finished is there, and the run is marked as what it is. Of
// several ranks nobody knows who was the first.
void report_for_the_lost(const std::string& directory, int ranks) {
  try {
    if (harness::read_run(directory).context.status != "running") return;
  } catch (const std::exception&) {
    return;  // it ended before it began; what went wrong was said
  }
  machine::Failure failure{.kind = machine::Failure::Kind::lost_rank,
                           .rank = ranks == 1 ? 0 : -1,
                           .text = "all ranks ended without a report"};
  std::string name;
  if (const std::optional<harness::RunningCase> last = harness::running_case(directory)) {
    name = last->name;
    failure.text =
        fmt::format("{} during {}", ranks == 1 ? last->process + " died" : failure.text, name);
  }
  harness::mark_aborted(directory, failure, harness::lost_record(name, failure));
  write_reports(directory);
  complain(harness::rank_lost, failure.text);
}

// As health-check runners have it: 3 says that nothing is known.
int tell_health(const std::string& directory) {
  try {
    const harness::Health health = harness::health_of(directory);
    fmt::print("{}", health_text(health));
    return static_cast<int>(health.level);
  } catch (const std::exception& error) {
    return complain(3, error.what());
  }
}

int run(CommandLine line, int argc, char** argv) {
  harness::AxisFlags axes = line.axes;
  std::string configuration;
  if (!line.deepspeed_file.empty() || !line.megatron_file.empty()) {
    const configuration::Resolved resolved =
        configuration::use_configuration({.deepspeed_file = line.deepspeed_file,
                                          .megatron_file = line.megatron_file,
                                          .ignore_unknown = line.ignore_unknown_keys},
                                         line.units, axes);
    configuration = configuration::json(resolved);
    const std::uint64_t usual = CommandLine().seed, said = configured->seed;
    if (line.seed != usual && said != usual && line.seed != said)
      throw harness::UsageError(
          fmt::format("--seed is {}, and {} makes it {}", line.seed, line.megatron_file, said));
    if (line.seed == usual) line.seed = said;
    if (!machine::under_launcher())
      for (const std::string& warning : resolved.warnings)
        complain(0, fmt::format("warning: {}", warning));
  }
  // Another node may have other cores, and all ranks must plan the same.
  const bool ranks_said = axes.contains("ranks");
  if (line.scaling && !ranks_said && machine::under_launcher())
    throw harness::UsageError("scale under mpiexec or srun needs --ranks, such as --ranks 1,2,4");
  if (line.scaling) line.scaling->choose(line.units, line.profile, axes);
  std::vector<harness::PlannedCase> cases = harness::plan_cases(line.units, line.profile, axes);
  if (line.scaling)
    std::erase_if(cases, [&](const auto& plan) { return !line.scaling->has(plan); });
  const harness::GoogleFront front(line.google_flags);
  const std::vector<std::size_t> selected = front.select(cases);
  if (front.list_only()) {
    front.list(cases, selected);
    return harness::accepted;
  }
  check_files(line, cases, selected);
  if (machine::under_launcher()) {
    hear_passed_on_signals();
    const harness::SupervisedRank rank;
    return rank.ends(run_rank(line, cases, configuration));
  }

  int ranks = 1;
  for (const std::size_t index : selected) ranks = std::max(ranks, cases[index].ranks);
  check_ranks(line.faults, ranks);
  std::vector<std::string> again{std::filesystem::read_symlink("/proc/self/exe").string()};
  again.insert(again.end(), argv + 1, argv + argc);
  // A directory named after the time must be the same for all ranks.
  if (line.out_dir_is_default) again.insert(again.end(), {"--out", line.out_dir});
  if (line.scaling && !ranks_said) again.insert(again.end(), {"--ranks", axes["ranks"]});
  const int code =
      launch(ranks, again,
             line.hostfile.empty() ? std::vector<HostSlots>() : read_hostfile(line.hostfile));
  if (code == harness::rank_lost) {
    report_for_the_lost(line.out_dir, ranks);
    tell_health(line.out_dir);
  }
  return code;
}

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::string_view(argv[1]) == "collective")
      return nccl_tests::run_collective(argc, argv);
    if (argc > 1 && std::string_view(argv[1]) == "plan") return configuration::run_plan(argc, argv);
    if (argc > 1 && std::string_view(argv[1]) == "compare")
      return comparison::run_compare(argc, argv);
    if (argc > 1 && std::string_view(argv[1]) == "history")
      return comparison::run_history(argc, argv);
    if (argc > 1 && std::string_view(argv[1]) == "ab") return comparison::run_ab(argc, argv);
    const CommandLine line = parse_command_line(argc, argv);
    switch (line.command) {
      case CommandLine::Command::help:
        fmt::print("{}", line.help);
        return harness::accepted;
      case CommandLine::Command::list:
        return list_units(line);
      case CommandLine::Command::run:
        return run(line, argc, argv);
      case CommandLine::Command::report:
        write_reports(line.report_dir);
        fmt::print("{}/report.html\n", line.report_dir);
        return harness::accepted;
      case CommandLine::Command::health:
        return tell_health(line.report_dir);
      case CommandLine::Command::data: {
        const TokenCounts counts = write_text_tokens(line.text_file, line.token_files);
        fmt::print("{0}.bin, {0}.idx: {1} documents, {2} tokens\n", line.token_files,
                   counts.documents, counts.tokens);
        return harness::accepted;
      }
    }
  } catch (const harness::UsageError& error) {
    return complain(harness::usage, error.what());
  } catch (const machine::MachineError& error) {
    return complain(harness::environment, error.what());
  } catch (const std::exception& error) {
    return complain(harness::environment, error.what());
  }
  return harness::accepted;
}

}  // namespace
}  // namespace suite

int main(int argc, char** argv) { return suite::main(argc, argv); }
