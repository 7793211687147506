#include "suite/launch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "harness/run.h"
#include "machine/device/error.h"
#include "suite/nccl_tests/front.h"

namespace suite {
namespace {

std::atomic<pid_t> launcher{0};
std::atomic<int> passed_on{0};

// mpiexec hands the signal on to every rank.
void pass_on(int signal) {
  passed_on.store(signal);
  if (const pid_t pid = launcher.load(); pid > 0) kill(pid, signal);
}

std::string find_launcher() {
  if (const char* given = std::getenv("SHARDMARK_MPIEXEC")) return given;
  const char* path = std::getenv("PATH");
  for (std::string_view rest = path ? path : ""; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::string file = fmt::format("{}/mpiexec", rest.substr(0, end));
    if (access(file.c_str(), X_OK) == 0) return file;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  throw machine::MachineError(
      "no mpiexec in PATH to start the ranks with; install MPICH (scripts/install), set "
      "SHARDMARK_MPIEXEC, or start this program under srun");
}

int exit_code_of(int status) {
  if (!WIFEXITED(status)) return harness::rank_lost;
  switch (const int code = WEXITSTATUS(status)) {
    case harness::accepted:
    case harness::case_failed:
    case harness::usage:
    case harness::environment:
    case nccl_tests::wrong_values:
    case 128 + SIGINT:
    case 128 + SIGTERM:
      return code;
    default:
      return harness::rank_lost;  // a rank's signal, or a launcher that gave up
  }
}

}  // namespace

int launch(int ranks, const std::vector<std::string>& command) {
  const std::string mpiexec = find_launcher();
  std::vector<std::string> words{mpiexec, "-n", std::to_string(ranks)};
  // When a rank dies the others stay, to say which one it was.
  words.emplace_back("-disable-auto-cleanup");
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  const pid_t child = fork();
  if (child < 0)
    throw machine::MachineError(fmt::format("cannot start {}: {}", mpiexec, std::strerror(errno)));
  if (child == 0) {
    setpgid(0, 0);  // a terminal's Ctrl-C reaches the ranks once, through pass_on
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execv(mpiexec.c_str(), arguments.data());
    const std::string line =
        fmt::format("shardmark: cannot run {}: {}\n", mpiexec, std::strerror(errno));
    [[maybe_unused]] const auto wrote = write(STDERR_FILENO, line.data(), line.size());
    _exit(harness::environment);
  }
  launcher.store(child);
  struct sigaction action {};
  action.sa_handler = pass_on;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  launcher.store(0);
  const int code = exit_code_of(status);
  // MPICH's mpiexec may return 0 when all ranks end right after the signal.
  return code == harness::accepted && passed_on.load() ? 128 + passed_on.load() : code;
}

}  // namespace suite
