#include "harness/run/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "harness/record/summary.h"
#include "harness/run/case_runner.h"
#include "harness/run/google_front.h"
#include "harness/run/turns.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"

namespace harness {
namespace {

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::atomic<int> handlers_installed{0};  // ranks may be threads

void remember_signal(int signal) { received_signal.store(signal, std::memory_order_relaxed); }

// The first SIGINT or SIGTERM only sets a flag. The second has its default effect.
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

// The next action, from rank 0 to the others.
struct Command {
  int index = -1, repetition = 0;  // of the next case; index -1: stop
  int exit_code = accepted;
};

class CaseLoop {
 public:
  CaseLoop(machine::World& world, const std::vector<PlannedCase>& cases, const RunOptions& options)
      : world_(world), cases_(cases), options_(options), runner_(world, options) {}

  int lead(Progress& progress);
  int follow();

 private:
  Command command(Command next);
  // Runs one case on all ranks of the world, and gathers their signals.
  void execute(const Command& command, Record& record, Progress* progress = nullptr);
  void check_device(const PlannedCase& plan, const Record& record);
  void lead_case(std::size_t index, int repetition, Progress& progress);
  void lead_in_turns(const std::vector<std::size_t>& selected, int repetitions, Progress& progress);
  // Returns null if the case was not run yet.
  const Record* finished(std::size_t index, int repetition) const;
  // Returns the repetitions of these cases that are not finished.
  int missing(const std::vector<std::size_t>& selected, int repetitions) const;
  void note_rates();
  void count_tested_gpus();
  void add_promise(Record& record) const;
  bool ends() const { return fatal_ || !unwritten_.empty() || signal_ != 0; }
  // Returns the cause of a lost rank, from this rank's exception and the board.
  machine::Failure loss(const std::exception& error) const;
  void lost(const std::exception& error) { world_.board().fail(machine::failure_of(error)); }

  machine::World& world_;
  const std::vector<PlannedCase>& cases_;
  const RunOptions& options_;
  CaseRunner runner_;
  int signal_ = 0;
  RunContext context_;
  std::vector<Record> records_;
  std::map<std::pair<std::string, int>, std::size_t> place_;  // by name and repetition
  std::exception_ptr fatal_;
  std::string unwritten_;  // the reason why sink or progress failed
};

Command CaseLoop::command(Command next) { return world_.broadcast(world_.group(), 0, next); }

void CaseLoop::execute(const Command& command, Record& record, Progress* progress) {
  const PlannedCase& plan = cases_[static_cast<std::size_t>(command.index)];
  if (options_.measure_rates) {
    world_.board().set_activity(fmt::format("measuring this machine with {} ranks", plan.ranks));
    runner_.rates().measure(world_, plan.ranks);
    if (const auto transport = transport_of(plan.axes))
      runner_.rates().measure_link(world_, plan.ranks, *transport);
  }
  world_.set_active_ranks(plan.ranks);
  const auto on_block = [progress](std::span<const double> times) {
    if (progress) progress->case_sampled(times);
  };
  if (world_.rank() < plan.ranks) {
    runner_.run(plan, command.repetition, record, on_block);
    check_device(plan, record);
  }
  world_.board().set_activity("between cases");
  const int mine = received_signal.load(std::memory_order_relaxed);
  for (const int theirs : world_.all_gather(world_.group(), mine))
    if (signal_ == 0) signal_ = theirs;
  // Frees the memory that links of this case shared.
  world_.barrier(world_.group());
}

// Ends the run at the first case that broke the device, because every later case would fail, and
// its text would blame its own calls.
void CaseLoop::check_device(const PlannedCase& plan, const Record& record) {
  if (!world_.computes_on_gpu()) return;
  world_.board().set_activity(plan.name, "checking the device");
  const std::string why = world_.device().why_broken();
  if (why.empty()) return;
  throw machine::MachineError(fmt::format("{}{} broke {}, so no later case ran: {}",
                                          record.failure ? record.failure->text + "; " : "",
                                          plan.name, world_.device().description(), why));
}

machine::Failure CaseLoop::loss(const std::exception& error) const {
  const machine::Board& board = world_.board();
  std::vector<std::optional<machine::Failure>> failures{machine::failure_of(error)};
  const bool of_peer = failures[0]->kind == machine::Failure::Kind::peer_failed;  // text names it
  failures[0]->rank = 0;
  std::string text = of_peer ? failures[0]->text : line(*failures[0]);
  for (int rank = 1; rank < board.size(); ++rank) {
    failures.push_back(board.noted(rank));
    if (failures.back())
      text += fmt::format("; during {}, {}", board.activity(rank), line(*failures.back()));
  }
  machine::Failure cause = *machine::first_cause(failures);
  cause.text = text;
  return cause;
}

const Record* CaseLoop::finished(std::size_t index, int repetition) const {
  const auto found = place_.find({cases_[index].name, repetition});
  return found == place_.end() ? nullptr : &records_[found->second];
}

int CaseLoop::missing(const std::vector<std::size_t>& selected, int repetitions) const {
  int count = 0;
  for (const std::size_t index : selected)
    for (int i = 0; i < repetitions; ++i) count += !finished(index, i);
  return count;
}

void CaseLoop::note_rates() {
  const std::size_t known = context_.rates.size();
  for (const auto& [what, rate] : runner_.rates().named()) context_.rates[what] = rate;
  if (options_.sink && context_.rates.size() > known) options_.sink->measured(context_);
}

void CaseLoop::add_promise(Record& record) const {
  if (!options_.promise || record.verdict != Ruling::pass || record.seconds <= 0) return;
  if (record.oversubscribed || record.shares_cores || context_.gpus.is_virtual) return;
  const Promise promise = options_.promise(record);
  if (promise.expected_s <= 0) return;
  record.counters["expected_s"] = promise.expected_s;
  record.counters["specified_s"] = promise.specified_s;
  record.counters["expected_fraction"] = promise.expected_s / record.seconds;
  const auto floor = options_.floors.find(std::string(kind_of_case(record)));
  if (floor != options_.floors.end()) record.counters["expected_floor"] = floor->second;
}

void CaseLoop::lead_case(std::size_t index, int repetition, Progress& progress) {
  try {
    const PlannedCase& plan = cases_[index];
    const double begin_s = machine::steady_s();
    progress.case_started(plan.name);
    if (options_.sink) options_.sink->started(plan.name);
    Record record;
    if (plan.ranks > world_.size()) {
      record = skipped(plan, repetition,
                       fmt::format("requires {} ranks (got {})", plan.ranks, world_.size()));
    } else {
      try {
        execute(command({static_cast<int>(index), repetition}), record, &progress);
      } catch (const std::exception& error) {
        if (record.name.empty()) record = skipped(plan, repetition, {});
        record.verdict = Ruling::fail;
        record.failure = context_.failure = loss(error);
        record.reason = context_.status_reason = record.failure->text;
        fatal_ = std::current_exception();
        lost(error);
      }
    }
    if (record.verdict != Ruling::skipped)
      record.counters["case_s"] = machine::steady_s() - begin_s;
    add_promise(record);
    if (!fatal_) note_rates();
    if (options_.sink) options_.sink->add(record);
    progress.case_done(record);
    record.samples = {};  // the sink has them; thousands of cases would not fit in memory
    record.trace = {};
    place_[{record.name, repetition}] = records_.size();
    records_.push_back(std::move(record));
  } catch (const std::exception& error) {  // thrown by sink or progress; no rank is lost
    if (unwritten_.empty()) unwritten_ = error.what();
    context_.status_reason = unwritten_;
    context_.failure = machine::failure_of(error);
  }
}

void CaseLoop::lead_in_turns(const std::vector<std::size_t>& selected, int repetitions,
                             Progress& progress) {
  const double begin_s = machine::steady_s();
  Turns turns(cases_, selected);
  for (const std::size_t index : selected)
    if (missing({index}, repetitions) == 0) turns.took(index, 0);
  while (const auto index = turns.next()) {
    const double started_s = machine::steady_s();
    for (int i = 0; i < repetitions; ++i) {
      if (ends() || machine::steady_s() - begin_s >= options_.max_seconds) return;
      if (!finished(*index, i)) lead_case(*index, i, progress);
    }
    turns.took(*index, machine::steady_s() - started_s);
  }
}

void CaseLoop::count_tested_gpus() {
  std::size_t ranks = 0;
  for (const Record& record : records_)
    if (record.verdict == Ruling::pass)
      ranks = std::max(ranks, static_cast<std::size_t>(std::atoi(axis(record, "ranks").c_str())));
  std::set<std::string> tested;
  for (std::size_t rank = 0; rank < std::min(ranks, options_.gpu_of_rank.size()); ++rank)
    tested.insert(options_.gpu_of_rank[rank]);
  tested.erase("");
  context_.gpus.tested = static_cast<int>(tested.size());
}

int CaseLoop::lead(Progress& progress) {
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
    return command({}).exit_code;
  }

  context_ = options_.context;
  records_ = options_.finished;
  for (std::size_t i = 0; i < records_.size(); ++i)
    place_[{records_[i].name, records_[i].repetition}] = i;
  progress.start(static_cast<std::size_t>(missing(selected, front->repetitions())));
  const bool in_turns = std::isfinite(options_.max_seconds);
  if (in_turns) lead_in_turns(selected, front->repetitions(), progress);
  front->run(
      cases_, selected,
      [&](std::size_t index, int repetition) {
        if (!in_turns && !ends() && !finished(index, repetition))
          lead_case(index, repetition, progress);
        return finished(index, repetition);
      },
      [&]() -> std::string {
        if (!context_.status_reason.empty()) return "not run: " + context_.status_reason;
        return signal_ != 0 ? "not run: interrupted" : "not run: time limit";
      });

  if (!ends()) context_.not_run += missing(selected, front->repetitions());
  context_.status = !context_.status_reason.empty() ? "aborted"
                    : signal_ != 0                  ? "interrupted"
                                                    : "complete";
  const bool with_faults = !context_.injected.empty();
  if (with_faults && context_.status == "complete") {
    context_.status = "injected";
    context_.status_reason = fmt::format("on purpose: {}", fmt::join(context_.injected, " "));
  }
  if (context_.status == "interrupted")
    context_.status_reason = fmt::format(
        "{} after {} of {} cases", signal_ == SIGINT ? "SIGINT" : "SIGTERM", records_.size(),
        selected.size() * static_cast<std::size_t>(front->repetitions()));
  count_tested_gpus();
  const auto whatever_the_end = [&](const auto& finish) {
    try {
      finish();
    } catch (const std::exception& error) {
      if (unwritten_.empty()) unwritten_ = error.what();
    }
  };
  whatever_the_end([&] {
    if (options_.sink) options_.sink->finish(context_);
  });
  whatever_the_end([&] { progress.finish(context_, records_); });
  if (fatal_) std::rethrow_exception(fatal_);
  if (!unwritten_.empty()) {
    command({.exit_code = environment});
    throw Unwritten(unwritten_);
  }
  const bool failed = std::ranges::any_of(records_, [](const Record& record) {
    return record.verdict == Ruling::fail || below_expectation(record);
  });
  int exit_code = with_faults || failed                 ? case_failed
                  : skipped_all_communication(records_) ? environment
                                                        : accepted;
  if (signal_ != 0) exit_code = 128 + signal_;
  return command({.exit_code = exit_code}).exit_code;
}

int CaseLoop::follow() {
  const std::string mistake = world_.broadcast(world_.group(), 0, {});
  if (!mistake.empty()) throw UsageError(mistake);
  try {
    while (true) {
      const Command next = command({});
      if (next.index < 0) return next.exit_code;
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
  CaseLoop loop(world, cases, options);
  return world.rank() == 0 ? loop.lead(progress) : loop.follow();
}

}  // namespace harness
