#include "harness/report/figures.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "harness/json/json.h"
#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "machine/base/clock.h"

namespace harness {
namespace {

namespace fs = std::filesystem;
constexpr int drawing_limit_s = 180;

std::string script_path() {
  if (const char* given = std::getenv("SHARDMARK_FIGURES"); given && *given) return given;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  for (const char* place :
       {"../../scripts/figures.py", "../../../scripts/figures.py",
        "../share/shardmark/scripts/figures.py", "share/shardmark/scripts/figures.py"})
    if (fs::exists(program / place, failed)) return (program / place).lexically_normal().string();
  return "";
}

std::string last_line(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return plain(text.substr(text.rfind('\n') + 1));
}

// Returns the script's output. Empty: it did not end in time.
std::optional<std::string> listen(int pipe) {
  const double end_s = machine::steady_s() + drawing_limit_s;
  std::string said;
  char buffer[4096];
  while (true) {
    pollfd wait{pipe, POLLIN, 0};
    const int left_ms = static_cast<int>(1e3 * (end_s - machine::steady_s()));
    const int ready = left_ms <= 0 ? 0 : ::poll(&wait, 1, left_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    const ssize_t got = ::read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return said;
    said.append(buffer, static_cast<std::size_t>(got));
  }
}

// Returns the reason why the script did not draw, or empty.
std::string draw_figures(const std::string& directory) {
  std::string script = script_path();
  if (script.empty()) return "cannot find scripts/figures.py; set SHARDMARK_FIGURES to its path";
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return std::strerror(errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], STDERR_FILENO);
  std::string python = "python3", target = directory;
  char* arguments[] = {python.data(), script.data(), target.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "python3", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe[1]);
  std::string why;
  if (error != 0) {
    why = fmt::format("cannot start python3: {}", std::strerror(error));
  } else {
    const std::optional<std::string> said = listen(pipe[0]);
    if (!said) ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!said)
      why = fmt::format("figures.py did not end within {} s", drawing_limit_s);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      why = said->empty() ? "figures.py failed" : last_line(*said);
  }
  ::close(pipe[0]);
  return why;
}

// A name that is a path elsewhere would let the page show a file outside of the run.
bool is_file_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos;
}

std::vector<Figure> listed(const fs::path& folder) {
  std::vector<Figure> figures;
  const auto listing = Json::parse_or_null(file_text(folder / "figures.json"));
  if (!listing.is_array()) return figures;
  for (const auto& one : listing) {
    if (!one.is_object()) continue;
    const auto text = [&one](const char* key) {
      const Json* const found = one.find(key);
      return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
    };
    const auto number = [&one](const char* key) {
      const Json* const found = one.find(key);
      return found != nullptr && found->is_number() ? found->get<double>() : 0.0;
    };
    if (is_file_name(text("name")))
      figures.push_back({text("name"), text("kind"), text("about"), text("group"), text("title"),
                         text("caption"), number("width"), number("height")});
  }
  return figures;
}

}  // namespace

Figures figures_of(const std::string& directory, bool draw) {
  Figures all;
  if (draw) all.missing = draw_figures(directory);
  const fs::path folder = fs::path(directory) / "figures";
  for (Figure& figure : listed(folder)) {
    std::error_code failed;
    if (fs::exists(folder / (figure.name + ".svg"), failed))
      all.figures.push_back(std::move(figure));
    else if (all.missing.empty())
      all.missing = fmt::format("{}.svg is missing", figure.name);
  }
  return all;
}

}  // namespace harness
