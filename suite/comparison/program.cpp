#include "suite/comparison/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "harness/record/summary.h"
#include "harness/unit/sweep.h"
#include "machine/base/error.h"

namespace suite::comparison {
namespace {

std::atomic<pid_t> running{0};
std::atomic<int> passed_on{0};

void pass_on(int signal) {
  passed_on.store(signal);
  if (const pid_t pid = running.load(); pid > 0) kill(pid, signal);
}

bool is_name(std::string_view text) {
  constexpr std::string_view first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  return !text.empty() && first.find(text[0]) != std::string_view::npos &&
         std::ranges::all_of(text, [&](char c) {
           return first.find(c) != std::string_view::npos || (c >= '0' && c <= '9');
         });
}

// Runs in the child, which may only make system calls before exec.
[[noreturn]] void become(char* const* arguments, int log) {
  setpgid(0, 0);  // a terminal's Ctrl-C reaches it once, through pass_on
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execvp(arguments[0], arguments);
  const char* why = std::strerror(errno);
  for (const char* part :
       {"shardmark: cannot run ", static_cast<const char*>(arguments[0]), ": ", why, "\n"})
    [[maybe_unused]] const auto wrote = write(STDERR_FILENO, part, std::strlen(part));
  _exit(3);
}

}  // namespace

Assignments parse_assignments(std::string_view flag, const std::string& text) {
  Assignments all;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos || !is_name(std::string_view(word).substr(0, equals)))
      throw harness::UsageError(
          fmt::format("{}: '{}' is no NAME=VALUE", flag, harness::plain(word)));
    all.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return all;
}

int run_program(const std::vector<std::string>& words, const Assignments& environment,
                const std::string& log) {
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0)
    throw machine::MachineError(fmt::format("cannot write to {}: {}", log, std::strerror(errno)));

  // Set in this process for the fork, so that the child does not allocate.
  std::vector<std::pair<std::string, const char*>> before;
  std::vector<std::string> kept;
  kept.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    const char* old = std::getenv(name.c_str());
    before.emplace_back(name, old ? kept.emplace_back(old).c_str() : nullptr);
    setenv(name.c_str(), value.c_str(), 1);
  }
  const pid_t child = fork();
  if (child == 0) become(arguments.data(), file);
  const int error = errno;
  for (auto old = before.rbegin(); old != before.rend(); ++old) {
    if (old->second)
      setenv(old->first.c_str(), old->second, 1);
    else
      unsetenv(old->first.c_str());
  }
  close(file);
  if (child < 0)
    throw machine::MachineError(fmt::format("cannot start {}: {}", words[0], std::strerror(error)));
  running.store(child);
  struct sigaction action {};
  action.sa_handler = pass_on;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  running.store(0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int signal_passed_on() { return passed_on.load(); }

std::string last_line_of(const std::string& log) {
  std::ifstream file(log);
  std::string line, last;
  while (std::getline(file, line))
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  return harness::plain(last);
}

}  // namespace suite::comparison
