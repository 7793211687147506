#include "harness/report/figures.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "harness/record/run_json.h"
#include "harness/record/summary.h"
#include "harness/report/junit.h"
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

// Returns why the script did not draw, or empty.
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
    why = fmt::format("python3 does not start: {}", std::strerror(error));
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

std::vector<Figure> listed(const fs::path& folder) {
  std::vector<Figure> figures;
  const auto listing = nlohmann::json::parse(file_text(folder / "figures.json"), nullptr, false);
  if (listing.is_array()) {
    for (const auto& one : listing)
      if (one.is_object() && one.contains("name"))
        figures.push_back(
            {one.value("name", ""), one.value("title", ""), one.value("caption", ""), "", {}});
    return figures;
  }
  std::error_code failed;
  for (const auto& file : fs::directory_iterator(folder, failed))
    if (file.path().extension() == ".svg")
      figures.push_back({file.path().stem().string(), "", "", "", {}});
  std::ranges::sort(figures, {}, &Figure::name);
  return figures;
}

}  // namespace

std::string inlined_svg(std::string_view file, std::string_view id_prefix, std::string_view label) {
  const std::size_t start = file.find("<svg"), end = file.rfind("</svg>");
  if (start == std::string_view::npos || end == std::string_view::npos || end < start) return "";
  std::string svg(file.substr(start, end + 6 - start));
  if (svg.find("<script") != std::string::npos) return "";
  const std::string prefix(id_prefix);
  // "$" in the prefix would be read as a reference; ours has none.
  svg = std::regex_replace(svg, std::regex(R"(\bid="([^"]*)\")"), "id=\"" + prefix + "$1\"");
  svg = std::regex_replace(svg, std::regex(R"(url\(#)"), "url(#" + prefix);
  svg = std::regex_replace(svg, std::regex(R"((xlink:)?href="#)"), "$1href=\"#" + prefix);
  const std::size_t metadata = svg.find("<metadata>"), after = svg.find("</metadata>");
  if (metadata < after && after != std::string::npos)
    svg.erase(metadata, after + std::strlen("</metadata>") - metadata);

  const std::size_t tag_end = svg.find('>');
  std::string tag = svg.substr(0, tag_end);
  const std::string rest = svg.substr(tag_end);
  if (tag.find("viewBox") == std::string::npos) {
    std::smatch width, height;
    if (std::regex_search(tag, width, std::regex(R"re(\swidth="([0-9.]+))re")) &&
        std::regex_search(tag, height, std::regex(R"re(\sheight="([0-9.]+))re")))
      tag += fmt::format(" viewBox=\"0 0 {} {}\"", width[1].str(), height[1].str());
  }
  tag = std::regex_replace(tag, std::regex(R"re(\s(width|height)="[^"]*")re"), "");
  return fmt::format("{} role=\"img\" aria-label=\"{}\"{}", tag, escaped(label), rest);
}

std::vector<std::vector<std::string>> parse_csv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row(1);
  bool quoted = false, any = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"')
      row.back() += text[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (quoted)
      row.back() += c;
    else if (c == ',')
      row.emplace_back();
    else if (c == '\n') {
      if (any) rows.push_back(std::move(row));
      row.assign(1, "");
      any = false;
      continue;
    } else if (c != '\r') {
      row.back() += c;
    }
    any = any || c != '\r';
  }
  if (any) rows.push_back(std::move(row));
  return rows;
}

Figures figures_of(const std::string& directory, bool draw) {
  Figures all;
  if (draw) all.missing = draw_figures(directory);
  const fs::path folder = fs::path(directory) / "figures";
  int number = 0;
  for (Figure& figure : listed(folder)) {
    const std::string title = figure.title.empty() ? figure.name : figure.title;
    figure.svg = inlined_svg(file_text(folder / (figure.name + ".svg")),
                             fmt::format("figure{}-", ++number), title);
    figure.rows = parse_csv(file_text(folder / (figure.name + ".csv")));
    if (!figure.svg.empty())
      all.figures.push_back(std::move(figure));
    else if (all.missing.empty())
      all.missing = fmt::format("{}.svg is missing or not an SVG", figure.name);
  }
  return all;
}

}  // namespace harness
