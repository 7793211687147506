#include "suite/program/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "harness/report/console.h"
#include "harness/run/run.h"
#include "harness/unit/launch_ranks.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/world/mpi_world.h"
#include "suite/nccl_tests/arguments.h"
#include "suite/options/options.h"

namespace suite {
namespace {

// Launchers also return 1 when a rank was lost (Open MPI's always, MPICH's if it happens early).
// So a rank that this program started reports "a case failed" by another number.
constexpr const char* started_here = "SHARDMARK_STARTED_HERE";
constexpr const char* launch_ranks_variable = "SHARDMARK_LAUNCH_RANKS";
constexpr int case_failed_here = 64 + harness::case_failed;
constexpr double launcher_patience_s = 10;

// The launcher of an MPI library.
struct Launcher {
  std::vector<std::string> programs;  // the first one in PATH is used
  std::vector<std::string> options;
  std::string hosts;  // the option that takes "a:4,b:4"
  std::string installed_by;
  int interrupt, terminate;  // the signals that pass on SIGINT and SIGTERM
};

Launcher launcher_of(machine::MpiLibrary library) {
  if (library == machine::MpiLibrary::mpich)
    return {{"mpiexec.mpich", "mpiexec.hydra", "mpiexec"},
            // If a rank dies, the other ranks stay and report it.
            {"-disable-auto-cleanup"},
            "-hosts",
            "scripts/install",
            SIGINT,
            SIGTERM};
  std::vector<std::string> options{
      "--quiet",          // this program reports errors itself
      "--oversubscribe",  // allow more ranks than cores
      "--bind-to",
      "none",  // ranks bind themselves
      "-x",
      started_here,
  };
  if (geteuid() == 0) options.emplace_back("--allow-run-as-root");
  return {{"mpirun.openmpi", "mpiexec.openmpi", "mpirun", "mpiexec"},
          options,
          "--host",
          "scripts/install --for openmpi",
          SIGUSR1,
          SIGUSR2};
}

std::atomic<pid_t> launcher_pid{0};
std::atomic<int> passed_on{0};
int interrupt_as = SIGINT, terminate_as = SIGTERM;

// The launcher passes the signal to every rank.
void pass_on(int signal) {
  passed_on.store(signal);
  if (const pid_t pid = launcher_pid.load(); pid > 0)
    kill(pid, signal == SIGINT ? interrupt_as : terminate_as);
}

void restore_signal(int signal) { raise(signal == SIGUSR1 ? SIGINT : SIGTERM); }

std::string find_program(const Launcher& launcher) {
  if (const char* given = std::getenv("SHARDMARK_MPIEXEC")) return given;
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    for (const std::string& program : launcher.programs) {
      const std::string file = fmt::format("{}/{}", rest.substr(0, end), program);
      if (access(file.c_str(), X_OK) == 0) return file;
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  throw machine::MachineError(fmt::format(
      "cannot start the ranks: no {} in PATH; install {} ({}), set SHARDMARK_MPIEXEC, or start "
      "this program under srun",
      fmt::join(launcher.programs, ", "), name(machine::mpi_library()), launcher.installed_by));
}

int exit_code_of(int status) {
  // An early signal can end a launcher before the launcher handles signals.
  if (!WIFEXITED(status)) return passed_on ? 128 + passed_on : int{harness::rank_lost};
  switch (const int code = WEXITSTATUS(status)) {
    case case_failed_here:
      return harness::case_failed;
    case case_failed_here |
        harness::environment:  // MPICH's launcher ors the codes: rank 0 could not write
      return harness::environment;
    case harness::accepted:
    case harness::usage:
    case harness::environment:
    case nccl_tests::wrong_values:
    case 128 + SIGINT:
    case 128 + SIGTERM:
      return code;
    default:
      return harness::rank_lost;  // a rank's signal or a failed launcher, including code 1
  }
}

// MPICH and UCX unlink their shared memory when all ranks of a host have mapped it. Ranks that are
// killed earlier leave it behind. If it is older than any pending start and no process maps it, it
// is orphaned.
void remove_lost_memory() {
  namespace fs = std::filesystem;
  constexpr std::time_t started_by_then_s = 60;
  std::vector<fs::path> lost;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator("/dev/shm", failed)) {
    struct stat status {};
    const std::string name = entry.path().filename().string();
    if ((name.starts_with("mpich_shar_tmp") || name.starts_with("ucx_shm_posix_")) &&
        lstat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid() && std::time(nullptr) - status.st_mtime > started_by_then_s)
      lost.push_back(entry.path());
  }
  if (lost.empty()) return;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", failed)) {
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      std::erase_if(lost, [&](const fs::path& path) { return line.ends_with(path.string()); });
  }
  for (const fs::path& path : lost) fs::remove(path, failed);
}

// Returns whether the process has running children. Zombies do not count.
bool has_children(pid_t parent) {
  namespace fs = std::filesystem;
  std::error_code ended;  // a process that ends during the scan
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ended)) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // "pid (name) state parent …". The name can contain any character.
    std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
    char state = 0;
    pid_t its_parent = 0;
    if (rest >> state >> its_parent && its_parent == parent && state != 'Z') return true;
  }
  return false;
}

// Returns the launcher's status. Kills a launcher that stays after its ranks have ended. Open MPI's
// launcher can stay if a rank is lost before it joins.
int wait_for(pid_t child, const std::string& program) {
  const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  double had_children_s = 0;
  for (int status = 0;;) {
    const pid_t ended = waitpid(child, &status, descriptor < 0 ? 0 : WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) {
      if (descriptor >= 0) close(descriptor);
      return status;
    }
    pollfd end{descriptor, POLLIN, 0};
    if (poll(&end, 1, 1000) != 0) continue;
    const double now_s = machine::steady_s();
    if (has_children(child)) {
      had_children_s = now_s;
    } else if (had_children_s > 0 && now_s - had_children_s > launcher_patience_s) {
      const std::string line =
          fmt::format("shardmark: {} still waits {:.0f} s after its last rank; killed it\n",
                      program, launcher_patience_s);
      [[maybe_unused]] const auto wrote = write(STDERR_FILENO, line.data(), line.size());
      kill(child, SIGKILL);
      had_children_s = 0;
    }
  }
}

}  // namespace

int launch(int ranks, const std::vector<std::string>& given, const std::vector<HostSlots>& hosts,
           const std::vector<int>& launch_ranks) {
  const Launcher launcher = launcher_of(machine::mpi_library());
  std::string list;
  int slots = 0;
  for (const HostSlots& host : hosts) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host.name, host.slots);
    slots += host.slots;
  }
  if (!hosts.empty() && slots < ranks)
    reject("{} ranks, but the hosts of --hostfile have {} slot{}", ranks, slots,
           slots == 1 ? "" : "s");
  const std::string program = find_program(launcher);
  if (machine::mpi_library() == machine::MpiLibrary::mpich) remove_lost_memory();
  std::vector<std::string> words{program, "-n", std::to_string(ranks)};
  if (!hosts.empty()) words.insert(words.end(), {launcher.hosts, list});
  words.insert(words.end(), launcher.options.begin(), launcher.options.end());
  if (!launch_ranks.empty() && machine::mpi_library() == machine::MpiLibrary::openmpi)
    words.insert(words.end(), {"-x", launch_ranks_variable});
  words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  words.insert(words.end(), given.begin(), given.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0)
    throw machine::MachineError(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
  if (child == 0) {
    setpgid(0, 0);  // a terminal's Ctrl-C reaches the ranks once, through pass_on
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setenv(started_here, "1", 1);
    setenv(launch_ranks_variable, harness::launch_ranks_text(launch_ranks).c_str(), 1);
    if (launch_ranks.empty()) unsetenv(launch_ranks_variable);
    if (winsize size{}; isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
      setenv(harness::columns_variable, std::to_string(size.ws_col).c_str(), 1);
    else
      unsetenv(harness::columns_variable);
    execv(program.c_str(), arguments.data());
    const std::string line =
        fmt::format("shardmark: cannot run {}: {}\n", program, std::strerror(errno));
    [[maybe_unused]] const auto wrote = write(STDERR_FILENO, line.data(), line.size());
    _exit(harness::environment);
  }
  interrupt_as = launcher.interrupt;
  terminate_as = launcher.terminate;
  launcher_pid.store(child);
  handle_signals({SIGINT, SIGTERM}, pass_on);
  const int status = wait_for(child, program);
  launcher_pid.store(0);
  const int code = exit_code_of(status);
  // MPICH's mpiexec may return 0 when all ranks end right after the signal.
  return code == harness::accepted && passed_on.load() ? 128 + passed_on.load() : code;
}

bool started_by_launch() { return std::getenv(started_here) != nullptr; }

std::vector<int> planned_launch_ranks() {
  const char* const text = started_by_launch() ? std::getenv(launch_ranks_variable) : nullptr;
  return harness::parse_launch_ranks(text ? text : "");
}

void handle_signals(std::initializer_list<int> signals, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  for (const int signal : signals) sigaction(signal, &action, nullptr);
}

void hear_passed_on_signals() {
  if (machine::mpi_library() == machine::MpiLibrary::openmpi)
    handle_signals({SIGUSR1, SIGUSR2}, restore_signal, SA_RESTART);
}

int together(machine::World& world, const std::function<void()>& work) {
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

int exit_code_of_rank(int rank, int code) {
  if (machine::mpi_library() == machine::MpiLibrary::openmpi && rank != 0) return harness::accepted;
  return code == harness::case_failed && started_by_launch() ? case_failed_here : code;
}

}  // namespace suite
