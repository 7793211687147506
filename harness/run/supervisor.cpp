#include "harness/run/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "harness/run/run.h"
#include "machine/device/device.h"

namespace harness {
namespace {

// One second for the watchdogs to notice, one for other ranks' reasons, the rest to write.
constexpr unsigned linger_s = 5;

void linger(const std::string& line) {
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
  ::sleep(linger_s);
  ::_exit(rank_lost);
}

}  // namespace

int SupervisedRank::ends(int code) const {
  if (supervisor_ >= 0) {
    [[maybe_unused]] const ssize_t wrote = ::write(supervisor_, "e", 1);
  }
  return code;
}

SupervisedRank::SupervisedRank() {
  if (machine::cuda::used()) throw std::logic_error("CUDA was used before the rank was forked");
  const pid_t supervisor = ::getpid();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return;
  const pid_t rank = ::fork();
  if (rank < 0) return;  // the rank runs unsupervised
  if (rank == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != supervisor) ::_exit(rank_lost);
    ::close(ends[0]);
    supervisor_ = ends[1];
    return;
  }
  ::prctl(PR_SET_NAME, "supervisor");
  // Launchers signal the process group, so the rank receives these signals itself.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  int status = 0;
  while (::waitpid(rank, &status, 0) < 0 && errno == EINTR) {
  }
  char end = 0;
  const bool came_to_its_end = ::read(ends[0], &end, 1) == 1;
  if (WIFEXITED(status) && (WEXITSTATUS(status) != 0 || came_to_its_end))
    ::_exit(WEXITSTATUS(status));
  if (WIFEXITED(status))
    linger(fmt::format("shardmark: rank process {} exited with code 0 too early\n", rank));
  const int signal = WTERMSIG(status);
  if (signal == SIGINT || signal == SIGTERM) ::_exit(128 + signal);
  linger(fmt::format("shardmark: rank process {} was ended by signal {} ({})\n", rank, signal,
                     ::strsignal(signal)));
}

}  // namespace harness
