// `shardmark run` and `shardmark scale`: start the ranks if necessary, measure and judge.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "harness/compare/comparable.h"
#include "harness/fingerprint/fingerprint.h"
#include "harness/fingerprint/nccl_log.h"
#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/record/running_case.h"
#include "harness/record/summary.h"
#include "harness/report/console.h"
#include "harness/run/google_front.h"
#include "harness/run/run.h"
#include "harness/run/supervisor.h"
#include "harness/run/watchdog.h"
#include "harness/unit/launch_ranks.h"
#include "harness/unit/unit.h"
#include "machine/base/error.h"
#include "machine/world/mpi_world.h"
#include "suite/checkpoint/saved_training.h"
#include "suite/checkpoint/training_checkpoint.h"
#include "suite/configuration/keys.h"
#include "suite/expectation/expectation.h"
#include "suite/files/corpus.h"
#include "suite/files/safetensors.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"
#include "suite/program/devices.h"
#include "suite/program/launch.h"
#include "suite/program/run_command_line.h"
#include "suite/training_step/configured_cases.h"
#include "suite/training_step/curve_keys.h"

namespace suite {
namespace {

// Rejects files that cannot be used, before any rank starts.
void check_files(const harness::RunOptions& options, std::uint64_t seed,
                 const std::vector<harness::PlannedCase>& cases,
                 const std::vector<std::size_t>& selected) {
  const harness::Files files{
      options.data_file, options.load_file, options.save_file, options.reference, seed,
      options.training};
  if (!options.data_file.empty()) Corpus::check(options.data_file);
  const auto selected_of = [&](std::string_view unit) {
    return std::ranges::count_if(selected,
                                 [&](std::size_t index) { return cases[index].unit == unit; });
  };
  const auto gpt = selected_of("gpt_step"), speed = selected_of("training_speed"),
             trainings = gpt + speed + selected_of("llama_step") + selected_of("gpt_grid");
  if (loads_checkpoint(options.load_file) || saves_checkpoint(options.save_file)) {
    if (trainings != 1)
      reject(
          "a checkpoint requires exactly one case of a training step (got {}); "
          "--benchmark_list_tests lists them",
          trainings);
  } else if (options.training.train_iters > 0 || options.training.save_interval > 0 ||
             options.training.async_save) {
    reject(
        "--train-iters, --save-interval and --async-save require --save DIR or --load DIR, a "
        "folder of checkpoints");
  }
  if (!options.load_file.empty() && !loads_checkpoint(options.load_file)) {
    const Safetensors weights(options.load_file);
    if (gpt + speed == 0)
      reject("--load requires a case of gpt_step or training_speed; none is selected");
  }
  if (!options.save_file.empty() && !saves_checkpoint(options.save_file)) {
    if (gpt != 1)
      reject(
          "--save requires exactly one case of gpt_step (got {}); --benchmark_list_tests "
          "lists them",
          gpt);
    check_writable(options.save_file);
    std::error_code ignored;
    if (std::filesystem::equivalent(options.save_file, options.load_file, ignored))
      reject("--save and --load name the same file: {}", options.save_file);
  }
  check_reference(options.reference, trainings);
  for (const std::size_t index : selected) cases[index].check_files(files);
}

// Returns the options that, in addition to the case name, determine how a case is measured.
harness::OptionTexts how_it_measures(const RunCommandLine& line) {
  harness::OptionTexts texts{{"device", line.device},
                             {"seed", std::to_string(*line.seed)},
                             {"max_seconds", fmt::format("{}", line.options.max_seconds_per_case)},
                             {"timing", std::string(name(line.options.timing))},
                             {"data", line.options.data_file},
                             {"load", line.options.load_file}};
  if (line.options.reference.kind != "cpu") texts["reference"] = line.options.reference.kind;
  return texts;
}

harness::RunContext context_of(const RunCommandLine& line, const std::string& configuration) {
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

// Returns the lines above a run on a terminal.
std::vector<std::pair<std::string, std::string>> facts(const RunCommandLine& line,
                                                       const machine::World& world,
                                                       const std::string& environment,
                                                       std::size_t cases) {
  std::set<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank) hosts.insert(world.host(rank));
  const auto all = harness::Json::parse(environment).value("same_on_all_ranks", harness::Json());
  const auto text = [&](const char* key) {
    const harness::Json* const value = all.find_path(key);
    if (value == nullptr) return std::string("differs between ranks");
    return value->is_string() ? value->text() : value->dump();
  };
  const std::string mpi = harness::mpi_name(text("/software/mpi/version"));
  return {{"machine", fmt::format("{}: {}, {} cores", fmt::join(hosts, ", "), text("/hardware/cpu"),
                                  text("/hardware/cores"))},
          {"GPUs", text("/hardware/cuda_devices") +
                       (machine::cuda::is_virtual() ? " (virtual, no hardware)" : "")},
          {"libraries",
           fmt::format("{}, oneDNN {}, CUDA {}, NCCL {}", mpi, text("/software/onednn/version"),
                       text("/software/cuda/runtime"), text("/software/nccl/loaded"))},
          {"profile", fmt::format("{}, {} cases on {} ranks, sampling at most {}",
                                  name(line.profile), cases, world.size(),
                                  harness::duration_text(static_cast<double>(cases) *
                                                         line.options.max_seconds_per_case))}};
}

// Rejects flags that are keys which no training step supports, with the reason, unless a selected
// unit has an axis of that name.
void reject_unsupported(const std::vector<std::string>& units,
                        const harness::PlanRequest& request) {
  const auto is_axis = [&](const std::string& flag) {
    return std::ranges::any_of(harness::families(units), [&](const harness::Family* family) {
      return std::ranges::any_of(family->axes(request),
                                 [&](const harness::AxisInfo& axis) { return axis.name == flag; });
    });
  };
  for (const auto& [flag, text] : request.flags)
    for (const configuration::Key& key : configuration::keys())
      if (key.effect == configuration::Effect::refused && key.megatron == "--" + flag &&
          !is_axis(flag))
        reject("--{} ({}) is not honoured: {}{}", flag, text, key.why,
               key.instead.empty() ? "" : fmt::format("; see {}", key.instead));
}

// Returns the cases. Sets `configuration` to the resolved files as JSON (empty without files), and
// the seed.
std::vector<harness::PlannedCase> plan(RunCommandLine& line, const harness::PlanRequest& request,
                                       std::string& configuration) {
  reject_unsupported(line.units, request);
  if (line.deepspeed_file.empty() && line.megatron_file.empty())
    return harness::plan_cases(line.units, request);
  ConfiguredCases configured = configured_cases({.deepspeed_file = line.deepspeed_file,
                                                 .megatron_file = line.megatron_file,
                                                 .ignore_unknown = line.ignore_unknown_keys},
                                                line.units, request);
  const configuration::Resolved& resolved = configured.resolved;
  if (resolved.seed && line.seed && *line.seed != *resolved.seed)
    reject("--seed {} conflicts with {} (seed {})", *line.seed, line.megatron_file, *resolved.seed);
  if (resolved.seed) line.seed = resolved.seed;
  if (!machine::under_launcher())
    for (const std::string& warning : resolved.warnings)
      complain(0, fmt::format("warning: {}", warning));
  configuration = json(resolved);
  line.configured = resolved.config;
  return std::move(configured.cases);
}

// Plans again with the numbers of ranks of a user's launcher, which MPI knows. Does nothing if
// these add no cases. Returns an exit code, or 0.
int plan_for_launch(RunCommandLine& line, harness::PlanRequest& request, machine::World& world,
                    std::vector<harness::PlannedCase>& cases, std::size_t& selected) {
  request.launch_ranks = harness::launch_ranks(world, request.device);
  if (request.launch_ranks.empty()) return harness::accepted;
  return together(world, [&] {
    std::string same_configuration;
    cases = plan(line, request, same_configuration);
    selected = harness::GoogleFront(line.options.google_flags).select(cases).size();
  });
}

// Adds to environment.json what NCCL chose, if it reported something. Collective.
void note_nccl(machine::World& world, const RunCommandLine& line, harness::NcclLog& log,
               const harness::InjectedVersions& versions, const std::string& out_dir) {
  const harness::NcclChoice mine = log.end();
  const std::vector<int> reported = world.all_gather(world.group(), int{!mine.empty()});
  if (std::ranges::count(reported, 0) == std::ssize(reported)) return;
  world.set_active_ranks(world.size());  // the binding of the fingerprint
  const std::string environment =
      harness::gather_environment(world, how_it_measures(line), versions, mine);
  if (world.rank() == 0)
    harness::write_file(out_dir + "/environment.json", environment, world.faults().disk);
}

// Compares the times with those of the cluster of --expect.
void expect(const RunCommandLine& line, const predict::Cluster& cluster,
            const machine::World& world, harness::RunOptions& options) {
  options.floors = line.floors;
  options.promise = [expectation = Expectation(cluster, world.computes_on_gpu(), line.configured)](
                        const harness::Record& record) { return expectation.promise(record); };
}

int run_rank(RunCommandLine& line, harness::PlanRequest request,
             std::vector<harness::PlannedCase> cases, std::size_t selected,
             const std::string& configuration) {
  // CUDA loads a kernel at its first launch by default. That waits for the device, and so for the
  // deadline if a gate is closed.
  if (line.options.timing == harness::Timing::armed) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  std::FILE* const text = line.prints_results ? stderr : stdout;
  harness::Console console(text, harness::terminal_of(text, line.color), line.console);
  console.end_after(line.run_seconds());
  int code = harness::accepted;
  int rank = 0;
  bool ended = false;
  std::string out_dir;
  {
    const auto world = machine::make_mpi_world(line.patience_s());
    harness::Injection injection(line.faults, *world);
    rank = world->rank();
    if (!line.scaling && !request.flags.contains("ranks") && !started_by_launch())
      code = plan_for_launch(line, request, *world, cases, selected);
    if (code != harness::accepted) return exit_code_of_rank(rank, code);
    // A name that contains the time can differ between ranks.
    out_dir = world->broadcast(world->group(), 0, line.out_dir);
    harness::RunOptions options = line.options;
    options.context = context_of(line, configuration);
    options.context.out_dir = out_dir;
    options.context.injected = injection.texts();
    if (!line.faults.empty()) options.injection = &injection;
    if (line.continued) options.finished = line.continued->records;
    options.seed = *line.seed;
    options.max_seconds = line.run_seconds();
    // Runs with injected faults are not compared with limits.
    options.measure_rates = !line.no_limits && line.faults.empty();
    std::unique_ptr<harness::Sink> sink;
    code = together(*world, [&] { choose_device(*world, harness::parse_device(line.device)); });
    if (code != harness::accepted) return exit_code_of_rank(rank, code);
    note_gpus(*world, options);
    // Runs with injected faults are not compared with a promise either.
    std::optional<predict::Cluster> cluster;
    if (!line.expect.empty() && line.faults.empty()) {
      cluster = predict::read_cluster(line.expect);
      expect(line, *cluster, *world, options);
    }
    // A virtual GPU has no speed.
    options.measure_rates = options.measure_rates && !options.context.gpus.is_virtual;
    const machine::GpuReading gpu = machine::read_gpu(world->device().pci_address());
    const std::string environment =
        harness::gather_environment(*world, how_it_measures(line), injection.versions());
    code = together(*world, [&] {
      check_ranks(line.faults, world->size());
      if (rank != 0) return;
      if (line.continued)
        harness::refuse_another(out_dir, *line.continued, environment, configuration);
      sink = std::make_unique<harness::RunWriter>(options.context, out_dir,
                                                  line.continued.has_value(), world->faults().disk);
      if (!line.continued)
        harness::write_file(out_dir + "/environment.json", environment, world->faults().disk);
      if (cluster)
        harness::write_file(out_dir + "/cluster.toml", cluster_file(*cluster),
                            world->faults().disk);
    });
    if (code != harness::accepted) return exit_code_of_rank(rank, code);
    options.sink = sink.get();
    if (rank == 0) console.head(facts(line, *world, environment, selected));
    std::vector<std::string> names;
    for (const harness::PlannedCase& plan : cases) names.push_back(plan.name);
    harness::Watchdog watchdog(*world, out_dir, line.patience_s(), std::move(names), sink.get());
    std::optional<harness::NcclLog> nccl_log;
    if (world->computes_on_gpu()) nccl_log.emplace();
    try {
      code = harness::run(*world, cases, options, console);
      ended = true;
      // After `environment`, rank 0 may be elsewhere (Unwritten).
      if (nccl_log && code != harness::environment)
        note_nccl(*world, line, *nccl_log, injection.versions(), out_dir);
    } catch (const harness::UsageError& error) {
      if (rank == 0) complain(0, error.what());
      code = harness::usage;
    } catch (const harness::Unwritten& error) {
      code = complain(harness::environment, error.what());
      ended = true;
    } catch (const std::exception& error) {
      watchdog.give_up(machine::failure_of(error));
    }
    if (ended && world->computes_on_gpu()) note_gpu_health(*world, gpu, out_dir);
  }
  if (rank != 0 || !ended) return exit_code_of_rank(rank, code);
  try {
    const std::string missing = write_reports(out_dir);
    fmt::print(text, "report: {}/report.html\n{}", out_dir, missing);
    print_health(out_dir, text);
  } catch (const std::exception& error) {
    if (code != harness::environment) code = complain(harness::environment, error.what());
  }
  return exit_code_of_rank(rank, code);
}

// Marks a run as aborted if all its ranks died without a report. If there were several ranks, the
// first that died is unknown.
void report_for_the_lost(const std::string& directory, int ranks) {
  try {
    if (harness::read_run(directory).context.status != "running") return;
  } catch (const std::exception&) {
    return;  // the run did not start; the error has been printed
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
  harness::Record lost = harness::lost_record(name, failure);
  lost.axes = harness::read_case_name(lost.name).axes;
  harness::mark_aborted(directory, failure, lost);
  write_reports(directory);
  complain(harness::rank_lost, failure.text);
}

// Returns the numbers of ranks of a launch that fills the hosts: one rank per slot of the hostfile,
// or per GPU of this host.
std::vector<int> launch_ranks_to_start(const RunCommandLine& line,
                                       const harness::PlanRequest& request) {
  std::vector<int> ranks_of_hosts;
  if (!line.hostfile.empty()) {
    for (const HostSlots& host : read_hostfile(line.hostfile)) ranks_of_hosts.push_back(host.slots);
  } else if (request.device == machine::Device::Kind::cuda) {
    ranks_of_hosts.push_back(gpus_of_host());
  }
  return harness::launch_ranks(ranks_of_hosts, request.device);
}

int run(RunCommandLine line, int argc, char** argv) {
  // Before planning: CUDA does not work in a rank that is forked after its parent has used it.
  std::optional<harness::SupervisedRank> rank;
  if (machine::under_launcher()) {
    hear_passed_on_signals();
    rank.emplace();
  }
  harness::PlanRequest request = line.request();
  harness::AxisFlags& axes = request.flags;
  const harness::RunOptions& options = line.options;
  if ((loads_checkpoint(options.load_file) || saves_checkpoint(options.save_file)) &&
      line.deepspeed_file.empty() && line.megatron_file.empty())
    choose_one_training(line.units, request);
  // Nodes can have different numbers of cores, but all ranks must plan the same cases.
  const bool ranks_said = axes.contains("ranks");
  if (line.scaling && !ranks_said && rank)
    reject("scale under mpiexec or srun requires --ranks (example: --ranks 1,2,4)");
  if (line.scaling) line.scaling->choose(line.units, line.profile, axes);
  if (!line.scaling && !ranks_said)
    request.launch_ranks = rank ? planned_launch_ranks() : launch_ranks_to_start(line, request);
  std::string configuration;
  std::vector<harness::PlannedCase> cases = plan(line, request, configuration);
  if (!line.seed) line.seed = harness::RunOptions().seed;
  if (line.scaling) std::erase_if(cases, [&](const auto& one) { return !line.scaling->has(one); });
  const harness::GoogleFront front(line.options.google_flags);
  const std::vector<std::size_t> selected = front.select(cases);
  if (front.list_only()) {
    front.list(cases, selected);
    return rank ? rank->ends(harness::accepted) : harness::accepted;
  }
  check_files(line.options, *line.seed, cases, selected);
  if (rank)
    return rank->ends(
        run_rank(line, std::move(request), std::move(cases), selected.size(), configuration));

  int ranks = 1;
  for (const std::size_t index : selected) ranks = std::max(ranks, cases[index].ranks);
  check_ranks(line.faults, ranks);
  std::vector<std::string> again(argv + 1, argv + argc);
  // The default directory contains the time, and must be the same for all ranks.
  if (line.out_dir_is_default) again.insert(again.end(), {"--out", line.out_dir});
  if (line.scaling && !ranks_said) again.insert(again.end(), {"--ranks", axes["ranks"]});
  const int code = launch(
      ranks, again, line.hostfile.empty() ? std::vector<HostSlots>() : read_hostfile(line.hostfile),
      request.launch_ranks);
  if (code == harness::rank_lost) {
    report_for_the_lost(line.out_dir, ranks);
    print_health(line.out_dir);
  }
  return code;
}

}  // namespace

int run_units(int argc, char** argv) {
  const std::optional<RunCommandLine> line = parse_run_command_line({argv + 1, argv + argc});
  return line ? run(*line, argc, argv) : static_cast<int>(harness::accepted);
}

}  // namespace suite
