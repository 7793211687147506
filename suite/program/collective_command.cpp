// `shardmark collective`: starts the ranks if necessary, measures, prints the table, writes the
// JSON.

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "collectives/communicator/choose.h"
#include "harness/fingerprint/build_info.h"
#include "harness/fingerprint/fingerprint.h"
#include "harness/run/run.h"
#include "harness/run/supervisor.h"
#include "harness/run/watchdog.h"
#include "machine/base/error.h"
#include "machine/link/connect.h"
#include "machine/world/mpi_world.h"
#include "suite/files/traffic.h"
#include "suite/nccl_tests/json.h"
#include "suite/nccl_tests/measure.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"
#include "suite/program/devices.h"
#include "suite/program/launch.h"

namespace suite::nccl_tests {
namespace {

volatile std::sig_atomic_t received_signal = 0;
// The first signal ends the sweep after the current row, a second signal ends the process.
void remember_signal(int signal) { received_signal = signal; }

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

// Reads and checks the environment of nccl-tests. Returns the minimum bandwidth.
std::optional<double> least_busbw() {
  for (const char* variable : {"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"})
    if (std::getenv(variable))
      reject("{} is set: separate groups of ranks are not supported; unset it", variable);
  const char* text = std::getenv("NCCL_TESTS_MIN_BW");
  if (!text) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= 0))
    reject("NCCL_TESTS_MIN_BW is '{}'; expected a bandwidth in GB/s", text);
  return value;
}

void refuse_environment(const Arguments& arguments) {
  if (arguments.operation != machine::Operation::all_to_all_v) return;
  for (const char* variable : {"NCCL_TESTS_ALLTOALLV_SPREAD", "NCCL_TESTS_ALLTOALLV_MATRIX_SCALE"})
    if (std::getenv(variable))
      reject("{} is set but not supported; unset it and use --traffic", variable);
}

std::vector<int> roots(const Arguments& arguments, int ranks) {
  if (!collectives::has_root(arguments.operation)) return {0};
  std::vector<int> all;
  for (int root = 0; root < ranks; ++root) all.push_back(root);
  if (!arguments.root) return all;
  if (*arguments.root >= ranks)
    reject("-r,--root {} is not one of {} ranks", *arguments.root, ranks);
  return {*arguments.root};
}

void reject_unless_empty(const std::string& why) {
  if (!why.empty()) reject("{}", why);
}

void check_ranks(const Arguments& arguments, int ranks) {
  if (arguments.operation == machine::Operation::all_to_all_v)
    reject_unless_empty(why_no_traffic(arguments.traffic_or_default(), ranks));
  for (const int root : roots(arguments, ranks)) {
    if (arguments.algorithm.empty() || arguments.algorithm == collectives::library ||
        arguments.algorithm == collectives::automatic)
      continue;
    const auto& algorithm = collectives::find_algorithm(arguments.operation, arguments.algorithm);
    if (const std::string why = algorithm.refuses({0, ranks, 1, root}); !why.empty())
      reject("{} by {}: {}", name(arguments.operation), arguments.algorithm, why);
  }
}

// Compares the options with the ranks that a launcher started.
void check_launched(const Arguments& arguments, int ranks) {
  if (arguments.ranks.value_or(ranks) != ranks)
    reject("--ranks {}, but the launcher started {}", *arguments.ranks, ranks);
  const int each = arguments.threads * arguments.gpus;
  if (!arguments.ranks && each != 1)
    reject("-t {} -g {} under a launcher: each process is one rank; start {} times more processes",
           arguments.threads, arguments.gpus, each);
  check_ranks(arguments, ranks);
}

// Returns the transport on which this rank would decide.
machine::Transport transport_of(const Arguments& arguments, const machine::World& world) {
  using enum machine::Transport;
  if (arguments.transport) return *arguments.transport;
  if (!world.computes_on_gpu()) return world.on_one_host(world.group()) ? shared_memory : mpi;
  return machine::why_not(world, world.group(), nccl).empty() ? nccl : cuda_ipc;
}

std::vector<RankLine> rank_lines(machine::World& world) {
  const std::string mine = fmt::format("{} {}", getpid(), world.device().description());
  std::vector<RankLine> lines;
  for (const std::string& theirs : world.all_gather(world.group(), mine)) {
    const int rank = static_cast<int>(lines.size());
    const std::size_t space = theirs.find(' ');
    lines.push_back(
        {rank, std::stol(theirs.substr(0, space)), world.host(rank), theirs.substr(space + 1)});
  }
  return lines;
}

// The part of the command that each rank runs.
class Sweep {
 public:
  Sweep(machine::World& world, Report& report, machine::Transport transport, std::string file)
      : world_(world),
        report_(report),
        measure_(world, report.arguments, transport),
        file_(std::move(file)) {}

  // Returns the signal that ended the sweep, or 0.
  int run() {
    const Arguments& a = report_.arguments;
    const std::vector<machine::Reduction> reductions =
        collectives::reduces(a.operation) ? a.reductions : std::vector{a.reductions.front()};
    for (const machine::Dtype dtype : a.dtypes)
      for (const machine::Reduction reduction : reductions)
        for (const int root : roots(a, world_.size()))
          for (int cycle = 0; a.cycles == 0 || cycle < a.cycles; ++cycle)
            for (const std::int64_t size : sizes(a)) {
              add(measure_.row(size, dtype, reduction, root));
              if (const int signal = anybodys_signal(); signal != 0) return signal;
            }
    return 0;
  }

  void write() const {
    if (!file_.empty()) replace_file(file_, json(report_));
  }

 private:
  void add(Row row) {
    count(report_.totals, row);
    report_.totals.out_of_bounds = measure_.failed_checks();
    if (world_.rank() != 0) return;
    fmt::print("{}",
               line(report_.arguments, row, report_.arguments.timestamps ? time_of_day() : ""));
    std::fflush(stdout);
    if (file_.empty()) return;
    report_.rows.push_back(std::move(row));
    report_.end_time = time_of_day();
    // Write at most once a second, so that the rows of a killed run are in the file.
    if (const auto now = std::chrono::steady_clock::now();
        now - written_ > std::chrono::seconds(1)) {
      write();
      written_ = now;
    }
  }
  int anybodys_signal() {
    for (const int theirs : world_.all_gather(world_.group(), int{received_signal}))
      if (theirs != 0) return theirs;
    return 0;
  }

  machine::World& world_;
  Report& report_;
  Measure measure_;
  std::string file_;
  std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

int run_rank(const Arguments& arguments, const std::vector<std::string>& command) {
  const auto world = machine::make_mpi_world(arguments.timeout_s);
  const auto end_with = [&](int code) { return exit_code_of_rank(world->rank(), code); };
  if (const int code = together(*world, [&] { choose_device(*world, arguments.device); }))
    return end_with(code);
  Report report;
  report.arguments = arguments;
  if (world->computes_on_gpu() && machine::cuda::is_virtual())
    report.arguments.notes.emplace_back("virtual GPUs: the times are not those of hardware");
  report.version = harness::build_info().version;
  report.command = command;
  report.start_time = time_of_day();
  report.ranks = rank_lines(*world);
  report.totals.least_busbw = least_busbw();
  std::string file;
  const auto transport = world->broadcast(world->group(), 0, transport_of(arguments, *world));
  if (const int code = together(*world, [&] {
        if (world->rank() == 0) check_launched(arguments, world->size());
        reject_unless_empty(machine::why_not(*world, world->group(), transport));
        if (world->rank() != 0) return;
        if (!arguments.json_path.empty()) file = claim_file(arguments.json_path);
      }))
    return end_with(code);
  report.transport = name(transport);
  if (world->rank() == 0) {
    for (const auto& [name, value] : harness::kept_environment(environ))
      report.environment.push_back(fmt::format("{}={}", name, value));
    if (!file.empty()) fmt::print("# Writing JSON output to {}\n", file);
    fmt::print("{}", header(report.arguments, report.version, report.ranks));
    std::fflush(stdout);
  }

  handle_signals({SIGINT, SIGTERM}, remember_signal, static_cast<int>(SA_RESETHAND) | SA_RESTART);
  harness::Watchdog watchdog(*world, "", arguments.timeout_s);
  try {
    Sweep sweep(*world, report, transport, file);
    const int signal = sweep.run();
    report.end_time = time_of_day();
    if (world->rank() == 0) {
      fmt::print("{}", footer(arguments, report.totals));
      std::fflush(stdout);
    }
    if (const int code = together(*world, [&] {
          if (world->rank() == 0) sweep.write();
        }))
      return end_with(code);
    if (!report.totals.right()) return end_with(wrong_values);
    return end_with(signal == 0 ? static_cast<int>(harness::accepted) : 128 + signal);
  } catch (const std::exception& error) {
    watchdog.give_up(machine::failure_of(error));
  }
}

}  // namespace

int run_collective(int argc, char** argv) {
  // As in nccl-tests, the environment can select the traffic.
  const std::optional<Arguments> parsed =
      parse_arguments({argv + 2, argv + argc}, std::getenv("NCCL_TESTS_ALLTOALLV_MATRIX_FILE"));
  if (!parsed) return harness::accepted;
  const Arguments& arguments = *parsed;
  refuse_environment(arguments);
  least_busbw();
  if (machine::under_launcher()) {
    hear_passed_on_signals();
    const harness::SupervisedRank rank;
    return rank.ends(run_rank(arguments, {argv, argv + argc}));
  }
  const int ranks = arguments.wanted_ranks();
  check_ranks(arguments, ranks);
  std::vector<std::string> again(argv + 1, argv + argc);
  if (!arguments.ranks) again.insert(again.end(), {"--ranks", std::to_string(ranks)});
  return launch(ranks, again);
}

}  // namespace suite::nccl_tests
