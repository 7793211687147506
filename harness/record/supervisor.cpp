#include "harness/record/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "harness/run.h"

namespace harness {
namespace {

// A second for the watchdogs to see it, one for others' reasons, the rest to write.
constexpr unsigned linger_s = 5;

}  // namespace

void supervise_rank() {
  const pid_t supervisor = ::getpid();
  const pid_t rank = ::fork();
  if (rank < 0) return;  // unsupervised is better than not at all
  if (rank == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != supervisor) ::_exit(rank_lost);
    return;
  }
  ::prctl(PR_SET_NAME, "supervisor");
  // Launchers signal the process group, so the rank hears these itself and ends as it sees fit.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  int status = 0;
  while (::waitpid(rank, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ::_exit(WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  if (signal == SIGINT || signal == SIGTERM) ::_exit(128 + signal);
  const std::string line = fmt::format("shardmark: rank process {} was ended by signal {} ({})\n",
                                       rank, signal, ::strsignal(signal));
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
  ::sleep(linger_s);
  ::_exit(rank_lost);
}

}  // namespace harness
