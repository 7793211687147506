#include "harness/run/watchdog.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "harness/diagnose/diagnosis.h"
#include "harness/record/run_json.h"
#include "harness/record/running_case.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/run/run.h"
#include "machine/base/clock.h"

namespace harness {
namespace {

using machine::RankState;
using machine::RankStatus;
using namespace std::chrono_literals;

constexpr auto period = 200ms;
constexpr double grace_s = 1;
constexpr double last_resort_s = 10;  // for a reporter to write; then all ranks end
// Before the waits time out, because until then every rank shows its peer.
double before_waits_end(double timeout_s) {
  return std::max(timeout_s / 2, 0.95 * timeout_s - 2 * grace_s);
}
// Sentinel values, not heartbeats.
constexpr std::uint64_t signed_off = ~std::uint64_t{0};
constexpr std::uint64_t reported = ~std::uint64_t{0} - 1;

ProcessState process_state(std::int64_t pid) {
  if (pid <= 0) return ProcessState::unknown;
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return ProcessState::gone;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return ProcessState::unknown;
  switch (text[name_end + 2]) {
    case 'Z':
    case 'X':
      return ProcessState::zombie;
    case 'T':
      return ProcessState::stopped;
    case 't':
      return ProcessState::traced;
    default:
      return ProcessState::alive;
  }
}

// Bypasses stdio, because the hung thread may hold its lock.
void say(std::string_view text) {
  const std::string line = fmt::format("shardmark: {}\n", text);
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

// Earlier observations of the other ranks: when their counters last changed.
class Watchdog::Eye {
 public:
  Eye(machine::World& world, std::vector<std::string> names)
      : world_(world), names_(std::move(names)), counters_(static_cast<std::size_t>(world.size())) {
    for (int rank = 0; rank < world.size(); ++rank) {
      RankView& view = seen_.emplace_back();
      view.rank = rank;
      view.host = world.host(rank);
      view.here = world.board().of(rank) != nullptr;
    }
  }

  Snapshot look(double now) {
    // This process itself did not run, so missing heartbeats do not count.
    const bool slept = now - looked_s_ > 2 && looked_s_ > 0;
    looked_s_ = now;
    for (std::size_t rank = 0; rank < seen_.size(); ++rank)
      if (seen_[rank].here) see(seen_[rank], counters_[rank], now, slept);
    return {world_.rank(), seen_};
  }

 private:
  struct Counters {
    std::uint64_t heartbeat = 0, progress = 0;
  };

  void see(RankView& view, Counters& counters, double now, bool slept) {
    const machine::Board& board = world_.board();
    const RankStatus& status = *board.of(view.rank);
    const std::uint64_t heartbeat = status.heartbeat.load(), progress = status.progress.load();
    if (counters.heartbeat != heartbeat || view.heartbeat_s == 0 || slept) view.heartbeat_s = now;
    if (counters.progress != progress || view.progress_s == 0 || slept) view.progress_s = now;
    view.pid = status.pid.load();
    // A rank whose heart beats is alive. Asking the kernel for every rank of the host in every rank
    // would take a time quadratic in the ranks.
    view.process = counters.heartbeat != heartbeat && heartbeat < reported
                       ? ProcessState::alive
                       : process_state(view.pid);
    counters = {heartbeat, progress};
    // Read after the process: a rank sets its state before it ends.
    view.state = status.state.load();
    if (view.state == RankState::failed) view.failed_s = std::min(view.failed_s, now);
    view.watched = heartbeat != 0 && heartbeat != signed_off && heartbeat != reported;
    view.waiting_for = status.waiting_for.load();
    view.on_device = status.on_device.load() > 0;
    view.activity = board.activity(view.rank);
    view.running_case = board.running_case(view.rank);
    complete(view.running_case, view.activity);
    view.noted = board.noted(view.rank);
    view.waiting = board.waiting(view.rank);
    view.last_wait = board.last_wait(view.rank);
  }

  // Completes a name that the board truncated, if only one case has this prefix.
  void complete(std::string& name, std::string& activity) const {
    if (name.empty()) return;
    const auto begins_so = [&](const std::string& one) { return one.starts_with(name); };
    const auto found = std::ranges::find_if(names_, begins_so);
    if (found == names_.end() || std::ranges::count_if(names_, begins_so) > 1) return;
    activity.replace(0, name.size(), *found);
    name = *found;
  }

  machine::World& world_;
  std::vector<std::string> names_;
  std::vector<RankView> seen_;
  std::vector<Counters> counters_;  // when last seen
  double looked_s_ = 0;
};

Watchdog::Watchdog(machine::World& world, std::string out_dir, double timeout_s,
                   std::vector<std::string> names, Sink* sink)
    : world_(world),
      out_dir_(std::move(out_dir)),
      sink_(sink),
      timeout_s_(before_waits_end(timeout_s)),
      eye_(std::make_unique<Eye>(world, std::move(names))) {
  if (world_.ranks_are_threads()) return;
  // MPICH's signal for a dead rank. Its default action would end this rank without a report.
  struct sigaction now {};
  if (::sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
    ::signal(SIGUSR1, SIG_IGN);
  world_.board().mine().heartbeat.store(1);
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  if (world_.board().failed_rank() < 0) {
    {
      const std::lock_guard lock(mutex_);
      end_ = true;
    }
    ended_.notify_all();
  }
  thread_.join();  // with a failed rank the thread ends the process
  world_.board().mine().heartbeat.store(signed_off);
}

void Watchdog::give_up(const machine::Failure& failure) {
  world_.board().fail(failure);
  if (thread_.joinable()) thread_.join();
  say(failure.text);
  ::_exit(rank_lost);
}

void Watchdog::watch() {
  double found_s = 0;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, period, [this] { return end_; })) {
    world_.board().mine().heartbeat.fetch_add(1);
    const double now = machine::steady_s();
    if (anybody_reported()) ::_exit(rank_lost);
    if (!diagnose(eye_->look(now), now, timeout_s_)) {
      found_s = 0;
    } else if (found_s == 0) {
      found_s = now;
    } else if (now - found_s > grace_s) {
      end_launch();
    }
  }
}

bool Watchdog::anybody_reported() const {
  for (int rank = 0; rank < world_.size(); ++rank)
    if (const RankStatus* status = world_.board().of(rank);
        status && status->heartbeat.load() == reported)
      return true;
  return false;
}

void Watchdog::end_launch() {
  const double start = machine::steady_s();
  machine::Board& board = world_.board();
  const auto report = diagnose(eye_->look(start), start, timeout_s_);
  if (!report) return;
  if (anybody_reported()) ::_exit(rank_lost);  // last: the look may have missed the reporter
  if (report->reporter != world_.rank()) {
    while (!anybody_reported() && machine::steady_s() - start < last_resort_s) {
      board.mine().heartbeat.fetch_add(1);
      std::this_thread::sleep_for(20ms);
    }
    if (!anybody_reported()) board.fail(report->failure);
    ::_exit(rank_lost);
  }

  say(report->failure.text);
  if (!out_dir_.empty()) {
    try {
      Record lost = lost_record(report->running_case, report->failure);
      lost.axes = read_case_name(lost.name).axes;
      if (sink_)
        sink_->abort(report->failure, lost);
      else
        mark_aborted(out_dir_, report->failure, lost);
      write_junit(out_dir_);
      write_report(out_dir_, /*draw=*/false);
    } catch (const std::exception& error) {
      say(fmt::format("cannot close the run: {}", error.what()));
    }
  }
  board.mine().heartbeat.store(reported);
  // The others see this and end. Ranks that cannot are killed, so that the job ends.
  for (int rank = 0; rank < world_.size(); ++rank) {
    const RankStatus* status = board.of(rank);
    if (rank == world_.rank() || !status || status->pid.load() <= 0) continue;
    const std::int64_t pid = status->pid.load();
    while (process_state(pid) == ProcessState::alive && machine::steady_s() - start < 2 * grace_s)
      std::this_thread::sleep_for(20ms);
    const ProcessState state = process_state(pid);
    const bool there = state == ProcessState::alive || state == ProcessState::stopped ||
                       state == ProcessState::traced;
    if (there && status->state.load() != RankState::finished)
      ::kill(static_cast<pid_t>(pid), SIGKILL);
  }
  ::_exit(rank_lost);
}

}  // namespace harness
