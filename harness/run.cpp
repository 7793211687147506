#include "harness/run.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <exception>
#include <optional>

#include "harness/case_runner.h"
#include "harness/google_front.h"
#include "machine/device/error.h"

namespace harness {
namespace {

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> handlers_installed{0};  // ranks may be threads

void remember_signal(int signal) { received_signal.store(signal, std::memory_order_relaxed); }

// SIGINT and SIGTERM only leave a mark, the first time; a second one acts as usual.
class Signals {
 public:
  Signals() {
    if (handlers_installed.fetch_add(1) > 0) return;
    received_signal.store(0);
    struct sigaction action {};
    action.sa_handler = remember_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(SIGINT, &action, &old_interrupt_);
    sigaction(SIGTERM, &action, &old_terminate_);
    installed_ = true;
  }
  ~Signals() {
    if (installed_) {
      sigaction(SIGINT, &old_interrupt_, nullptr);
      sigaction(SIGTERM, &old_terminate_, nullptr);
    }
    handlers_installed.fetch_sub(1);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  bool installed_ = false;
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

// What rank 0 tells the others to do next.
struct Command {
  enum Kind : int { run_case, stop } kind = stop;
  int index = 0, repetition = 0;
  int exit_code = 0;
};

class Launch {
 public:
  Launch(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options)
      : world_(world), cases_(cases), options_(options), runner_(world, options) {}

  int lead(Progress& progress);
  int follow();

 private:
  Command command(Command next);
  // Everything of one case that all ranks of the world do. True when any rank has had a signal.
  void execute(const Command& command, Record& record);
  const Record* lead_case(std::size_t index, int repetition, Progress& progress);
  // What is known about the loss of a rank, beyond the exception that this rank got.
  std::string loss(const std::exception& error);
  void lost(const std::exception& error) { world_.board().fail(error.what()); }

  machine::World& world_;
  const std::vector<PlannedCase>& cases_;
  const RunOptions& options_;
  CaseRunner runner_;
  int signal_ = 0;
  RunContext context_;
  std::vector<Record> records_;
  std::exception_ptr fatal_;
};

// The axis of that name; of a case without one no limit asks.
std::optional<machine::Transport> transport_of(const PlannedCase& plan) {
  for (const auto& [axis, value] : plan.axes)
    for (const auto transport : {machine::Transport::shared_memory, machine::Transport::mpi})
      if (axis == "transport" && value == machine::name(transport)) return transport;
  return std::nullopt;
}

Command Launch::command(Command next) {
  const std::string sent(reinterpret_cast<const char*>(&next), sizeof next);
  const std::string got =
      world_.broadcast(world_.group(), 0, world_.rank() == 0 ? sent : std::string());
  std::memcpy(&next, got.data(), sizeof next);
  return next;
}

void Launch::execute(const Command& command, Record& record) {
  const PlannedCase& plan = cases_[static_cast<std::size_t>(command.index)];
  if (options_.measure_rates) {
    world_.board().set_activity(fmt::format("measuring this machine with {} ranks", plan.ranks));
    runner_.rates().measure(world_, plan.ranks);
    if (const auto transport = transport_of(plan))
      runner_.rates().measure_link(world_, plan.ranks, *transport);
  }
  world_.set_active_ranks(plan.ranks);
  if (world_.rank() < plan.ranks) runner_.run(plan, command.repetition, record);
  world_.board().set_activity("between cases");
  const std::string mine = std::to_string(received_signal.load(std::memory_order_relaxed));
  for (const std::string& theirs : world_.all_gather(world_.group(), mine))
    if (signal_ == 0) signal_ = std::stoi(theirs);
  // Memory that links of this case shared is given back here.
  world_.barrier(world_.group());
}

std::string Launch::loss(const std::exception& error) {
  std::string text = error.what();
  if (!dynamic_cast<const machine::PeerFailure*>(&error)) text = fmt::format("rank 0: {}", text);
  const machine::Board& board = world_.board();
  for (int rank = 1; rank < board.size(); ++rank) {
    if (!board.of(rank)) continue;
    const std::string activity = board.activity(rank);
    if (activity.find(" threw: ") != std::string::npos)
      text += fmt::format("; rank {}: {}", rank, activity);
  }
  return text;
}

const Record* Launch::lead_case(std::size_t index, int repetition, Progress& progress) {
  if (fatal_ || signal_ != 0) return nullptr;
  try {
    const PlannedCase& plan = cases_[index];
    progress.case_started(plan.name);
    Record& record = records_.emplace_back();
    if (plan.ranks > world_.size()) {
      record =
          skipped(plan, repetition,
                  fmt::format("needs {} ranks, this launch has {}", plan.ranks, world_.size()));
    } else {
      try {
        execute(command({Command::run_case, static_cast<int>(index), repetition, 0}), record);
      } catch (const std::exception& error) {
        if (record.name.empty()) record = skipped(plan, repetition, {});
        record.verdict = Ruling::fail;
        record.reason = context_.status_reason = loss(error);
        fatal_ = std::current_exception();
        lost(error);
      }
    }
    if (options_.sink) options_.sink->add(record);
    progress.case_done(record);
    record.samples = {};  // the sink has them; thousands of cases would not fit in memory
    return &record;
  } catch (const std::exception& error) {  // of sink or progress: a full disk, a closed pipe
    fatal_ = std::current_exception();
    context_.status_reason = error.what();
    lost(error);
    return nullptr;
  }
}

int Launch::lead(Progress& progress) {
  std::optional<GoogleFront> front;
  std::vector<std::size_t> selected;
  std::string mistake;
  try {
    front.emplace(options_.google_flags);
    selected = front->select(cases_);
  } catch (const UsageError& error) {
    mistake = error.what();
  }
  world_.broadcast(world_.group(), 0, mistake);
  if (!mistake.empty()) throw UsageError(mistake);
  if (front->list_only()) {
    front->list(cases_, selected);
    return command({Command::stop, 0, 0, accepted}).exit_code;
  }

  context_.profile = name(options_.profile);
  context_.command = options_.command;
  context_.configuration = options_.configuration;
  context_.out_dir = options_.out_dir;
  progress.start(selected.size());
  front->run(
      cases_, selected,
      [&](std::size_t index, int repetition) { return lead_case(index, repetition, progress); },
      [&] {
        return fatal_ ? "not run: " + context_.status_reason : std::string("not run: interrupted");
      });

  context_.rates = runner_.rates().named();
  context_.status = fatal_ ? "aborted" : signal_ != 0 ? "interrupted" : "complete";
  if (!fatal_ && signal_ != 0)
    context_.status_reason =
        fmt::format("{} after {} of {} cases", signal_ == SIGINT ? "SIGINT" : "SIGTERM",
                    records_.size(), selected.size());
  try {
    if (options_.sink) options_.sink->finish(context_);
    progress.finish(context_, records_);
  } catch (const std::exception& error) {
    lost(error);
    if (!fatal_) throw;
  }
  if (fatal_) std::rethrow_exception(fatal_);
  int exit_code = accepted;
  for (const Record& record : records_)
    if (record.verdict == Ruling::fail) exit_code = case_failed;
  if (signal_ != 0) exit_code = 128 + signal_;
  return command({Command::stop, 0, 0, exit_code}).exit_code;
}

int Launch::follow() {
  const std::string mistake = world_.broadcast(world_.group(), 0, {});
  if (!mistake.empty()) throw UsageError(mistake);
  try {
    while (true) {
      const Command next = command({});
      if (next.kind == Command::stop) return next.exit_code;
      Record record;
      execute(next, record);
    }
  } catch (const std::exception& error) {
    lost(error);
    throw;
  }
}

}  // namespace

int run(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options,
        Progress& progress) {
  const Signals signals;
  Launch launch(world, cases, options);
  return world.rank() == 0 ? launch.lead(progress) : launch.follow();
}

}  // namespace harness
