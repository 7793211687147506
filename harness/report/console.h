#pragma once
// The console output of a run. A terminal shows the machine, one line that is redrawn in place, and
// failures. Finally it shows a table by unit, or by case if there are few. Elsewhere each finished
// case gets a plain line without control characters.

#include <cstdio>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/sink.h"

namespace harness {

struct Terminal {
  bool interactive = false;                        // a terminal that understands \r and ESC [K
  bool color = false;                              // NO_COLOR is unset
  std::function<int()> width = [] { return 80; };  // asked at every redraw; the user may resize
  std::string painted(Ruling verdict, const std::string& text) const;
};
// The width of the terminal of the process that started this one.
constexpr const char* columns_variable = "SHARDMARK_COLUMNS";
enum class Color : unsigned char { automatic, always, never };
std::vector<std::string> color_names();  // auto, always, never
// Throws UsageError for another name.
Color parse_color(std::string_view text);
// automatic: on a terminal, if NO_COLOR is unset.
Terminal terminal_of(std::FILE* out, Color color = Color::automatic);

struct ConsoleOptions {
  bool verbose = false;  // every case's line on a terminal, too
  int durations = 0;     // number of cases, the longest first, listed at the end
};

class Console : public Progress {
 public:
  // seconds: a monotonic clock; empty: the process's clock.
  Console(std::FILE* out, Terminal terminal, ConsoleOptions options = {},
          std::function<double()> seconds = {});

  // Limits the displayed remaining time to `seconds` from the start.
  void end_after(double seconds) { most_s_ = seconds; }
  // Shows the machine and the run above the progress of a terminal: "host" "node1, 2 x EPYC 9654".
  void head(const std::vector<std::pair<std::string, std::string>>& facts);
  void start(std::size_t cases) override;
  void case_started(const std::string& name) override;
  void case_sampled(std::span<const double> times) override;
  void case_done(const Record& record) override;
  void finish(const RunContext& context, const std::vector<Record>& records) override;

 private:
  void draw(bool always);
  void clear();
  void put(std::string_view text);
  double seconds_left() const;

  std::FILE* out_;
  Terminal terminal_;
  ConsoleOptions options_;
  std::function<double()> seconds_;
  std::size_t cases_ = 0, done_ = 0;
  std::string current_, so_far_;  // the case's name and its median so far
  double started_s_ = 0, case_started_s_ = 0, so_far_shown_s_ = 0, drawn_s_ = 0;
  double most_s_ = std::numeric_limits<double>::infinity();
  double recent_s_ = 0;  // per case, weighted towards the last ones
  bool on_screen_ = false;
};

// Removes the middle of a text that is too long. A case's name starts with the unit, and its end
// distinguishes neighbouring cases.
std::string fitted(const std::string& text, int width);
// Returns the text of finish(): tables, failures, skips, longest cases, verdict.
std::string summary_text(const RunContext& context, const std::vector<Record>& records,
                         const Terminal& terminal, const ConsoleOptions& options = {});

}  // namespace harness
