#include "harness/report/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "harness/measure/statistics.h"
#include "harness/record/summary.h"
#include "machine/base/clock.h"
#include "machine/base/error.h"
#include "machine/base/names.h"

namespace harness {
namespace {

constexpr double redraw_s = 0.05;
constexpr double recent_weight = 0.1;
// A longer case shows its median so far, first after this time and then at this interval.
constexpr double so_far_s = 10;

std::string case_line(const Record& record, const Terminal& terminal) {
  const bool failed = record.verdict == Ruling::fail;
  const std::string verdict =
      fmt::format("{:<7}", failed ? "FAIL" : std::string(name(record.verdict)));
  std::string line =
      fmt::format("{} {}", terminal.painted(record.verdict, verdict), plain(record.name));
  if (record.seconds > 0) line += fmt::format("  {}", seconds_text(record.seconds));
  if (const std::string rate = rate_text(record); !rate.empty()) line += fmt::format("  {}", rate);
  if (const std::string wire = wire_text(record); !wire.empty())
    line += fmt::format("  wire {}", wire);
  if (const std::string mfu = mfu_text(record); !mfu.empty()) line += fmt::format("  {}", mfu);
  if (record.verdict != Ruling::pass) line += fmt::format("  ({})", plain(record.reason));
  return line + "\n";
}

// Returns the columns; 0: no terminal. MPICH's ranks write to a pipe and Open MPI's to a terminal
// without size, so the process that started them passes the width.
int columns_of(int file) {
  winsize size{};
  if (::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv(columns_variable);
  return columns ? std::atoi(columns) : 0;
}

}  // namespace

std::string fitted(const std::string& text, int width) {
  const auto room = static_cast<std::size_t>(std::max(0, width));
  if (text.size() <= room) return text;
  if (room < 8) return text.substr(0, room);
  const std::size_t head = (room - 2) / 2;
  return text.substr(0, head) + ".." + text.substr(text.size() - (room - 2 - head));
}

std::string Terminal::painted(Ruling verdict, const std::string& text) const {
  constexpr std::string_view colors[] = {"\x1b[32m", "\x1b[31m", "\x1b[33m"};  // by Ruling
  return color ? fmt::format("{}{}\x1b[0m", colors[static_cast<std::size_t>(verdict)], text) : text;
}

std::vector<std::string> color_names() { return {"auto", "always", "never"}; }  // by Color

Color parse_color(std::string_view text) {
  const std::vector<std::string> names = color_names();
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) throw machine::UsageError(machine::unknown("--color", text, names));
  return static_cast<Color>(found - names.begin());
}

Terminal terminal_of(std::FILE* out, Color color) {
  const int file = ::fileno(out);
  const char* kind = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  const bool interactive = columns_of(file) > 0 && kind && std::string_view(kind) != "dumb";
  const bool by_default = interactive && !(no_color && *no_color);
  return {interactive, color == Color::automatic ? by_default : color == Color::always, [file] {
            const int columns = columns_of(file);
            return columns > 0 ? columns : 80;
          }};
}

Console::Console(std::FILE* out, Terminal terminal, ConsoleOptions options,
                 std::function<double()> seconds)
    : out_(out),
      terminal_(std::move(terminal)),
      options_(options),
      seconds_(seconds ? std::move(seconds) : machine::steady_s) {}

void Console::put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void Console::clear() {
  if (on_screen_) put("\r\x1b[K");
  on_screen_ = false;
}

void Console::head(const std::vector<std::pair<std::string, std::string>>& facts) {
  if (!terminal_.interactive) return;
  for (const auto& [name, value] : facts)
    put(fitted(fmt::format("{:<10}{}", name, plain(value)), std::min(terminal_.width(), 100)) +
        "\n");
}

void Console::start(std::size_t cases) {
  cases_ = cases;
  done_ = 0;
  recent_s_ = 0;
  started_s_ = case_started_s_ = seconds_();
  if (terminal_.interactive) draw(true);
}

void Console::case_started(const std::string& name) {
  current_ = plain(name);
  so_far_.clear();
  case_started_s_ = so_far_shown_s_ = seconds_();
  if (terminal_.interactive) draw(false);
}

void Console::case_sampled(std::span<const double> times) {
  if (seconds_() - so_far_shown_s_ < so_far_s) return;
  so_far_shown_s_ = seconds_();
  so_far_ = fmt::format("{} so far ({} sample{})", seconds_text(median(times)), times.size(),
                        times.size() == 1 ? "" : "s");
  if (terminal_.interactive) return draw(false);
  put(fmt::format("running {}  {}\n", current_, so_far_));
}

namespace {

constexpr std::size_t few_cases = 8;

// "        loss by step: 5.592 5.370 …", the note, or empty.
std::string further_lines(const Record& record) {
  std::string lines;
  if (!record.note.empty()) lines += fmt::format("        {}\n", record.note);
  if (record.losses.empty()) return lines;
  lines += "        loss by step:";
  for (const double loss : record.losses) lines += fmt::format(" {:.4f}", loss);
  return lines + "\n";
}

constexpr std::size_t few_pairs = 3;

// "        slow pairs: 2 (node-a) to 5 (node-b) bandwidth 3.1 of 12 GB/s, …, and 4 more", or empty.
std::string slow_pair_line(const Record& record) {
  const LinkMatrix& matrix = record.link_matrix;
  std::string line;
  for (std::size_t i = 0; i < std::min(few_pairs, matrix.slow_pairs.size()); ++i)
    line += fmt::format("{} {}", i == 0 ? "        slow pairs:" : ",",
                        plain(pair_text(matrix, matrix.slow_pairs[i])));
  if (matrix.slow_pairs.size() > few_pairs)
    line += fmt::format(", and {} more", matrix.slow_pairs.size() - few_pairs);
  return line.empty() ? line : line + "\n";
}

}  // namespace

void Console::case_done(const Record& record) {
  const double took = seconds_() - case_started_s_;
  recent_s_ = done_ == 0 ? took : (1 - recent_weight) * recent_s_ + recent_weight * took;
  ++done_;
  const std::string text =
      case_line(record, terminal_) + further_lines(record) + slow_pair_line(record);
  if (!terminal_.interactive) return put(text);
  // A terminal shows only failures, slow pairs, and in a run of few cases the further lines.
  const bool show = options_.verbose || record.verdict == Ruling::fail ||
                    !record.link_matrix.slow_pairs.empty() ||
                    (!further_lines(record).empty() && cases_ <= few_cases);
  if (show) {
    clear();
    put(text);
  }
  draw(show || done_ == cases_);
}

// Cases run unit by unit, and units differ. So the last cases predict the next case, and all cases
// predict the later ones.
double Console::seconds_left() const {
  const double gone = seconds_() - started_s_, mean = gone / static_cast<double>(done_);
  return std::min(std::max(0.0, most_s_ - gone),
                  (mean + recent_s_) / 2 * static_cast<double>(cases_ - std::min(cases_, done_)));
}

void Console::draw(bool always) {
  const double now = seconds_();
  if (!always && on_screen_ && now - drawn_s_ < redraw_s) return;
  drawn_s_ = now;
  const int width = terminal_.width() - 1;  // writing the last column would wrap on some terminals
  const std::size_t percent = cases_ == 0 ? 100 : 100 * std::min(done_, cases_) / cases_;
  std::string line = fmt::format("{:3}%  {}/{}", percent, done_, cases_);
  const std::string left =
      done_ > 0 && done_ < cases_ ? fmt::format("  {} left", duration_text(seconds_left())) : "";
  if (width >= 60) {
    const std::size_t filled = percent / 5;
    line = fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(20 - filled, '.'), line);
  }
  const int room = width - static_cast<int>(line.size() + left.size()) - 2;
  const std::string now_runs = so_far_.empty() ? current_ : current_ + "  " + so_far_;
  if (done_ < cases_ && !current_.empty() && room >= 12) line += "  " + fitted(now_runs, room);
  line = fitted(line + left, width);
  put(fmt::format("\r{}\x1b[K", line));
  on_screen_ = true;
}

void Console::finish(const RunContext& context, const std::vector<Record>& records) {
  clear();
  put(summary_text(context, records, terminal_, options_));
}

}  // namespace harness
