#include "harness/history/exports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <set>

#include "harness/json/json.h"
#include "harness/measure/statistics.h"
#include "harness/record/record_json.h"
#include "harness/unit/sweep.h"
#include "machine/base/names.h"

namespace harness {
namespace {
const std::vector<std::string> formats{"google_benchmark", "bencher", "otava", "prometheus"};

struct Row {
  StoredRun run;
  std::map<std::string, CaseTime> cases;
};

std::string text(const Json& json) { return json.dump(1) + "\n"; }

std::string field(const StoredRun& run, const char* name) {
  const auto found = run.fields.find(name);
  return found == run.fields.end() ? "" : found->second;
}

// Returns the names of the cases of all runs, in order.
std::set<std::string> names_of(const std::vector<Row>& rows) {
  std::set<std::string> names;
  for (const Row& row : rows)
    for (const auto& [name, one] : row.cases) names.insert(name);
  return names;
}

std::vector<double> seconds_of(const std::vector<Row>& rows, const std::string& name) {
  std::vector<double> seconds;
  for (const Row& row : rows)
    if (const auto one = row.cases.find(name); one != row.cases.end() && one->second.seconds > 0)
      seconds.push_back(one->second.seconds);
  return seconds;
}

std::string google_benchmark(const std::vector<Row>& rows) {
  Json all;
  const StoredRun& last = rows.back().run;
  all["context"] = {{"date", last.date},
                    {"host_name", field(last, "host")},
                    {"executable", "shardmark"},
                    {"library_build_type", "release"},
                    {"shardmark_commit", last.commit}};
  all["benchmarks"] = Json::array();
  int family = 0;
  for (const std::string& name : names_of(rows)) {
    const std::vector<double> seconds = seconds_of(rows, name);
    for (std::size_t i = 0; i < seconds.size(); ++i)
      all["benchmarks"].push_back({{"name", name},
                                   {"family_index", family},
                                   {"per_family_instance_index", 0},
                                   {"run_name", name},
                                   {"run_type", "iteration"},
                                   {"repetitions", seconds.size()},
                                   {"repetition_index", i},
                                   {"threads", 1},
                                   {"iterations", 1},
                                   {"real_time", seconds[i] * 1e9},
                                   {"cpu_time", seconds[i] * 1e9},
                                   {"time_unit", "ns"}});
    ++family;
  }
  return text(all);
}

std::string bencher(const std::vector<Row>& rows) {
  Json all = Json::object();
  for (const std::string& name : names_of(rows)) {
    const std::vector<double> seconds = seconds_of(rows, name);
    if (seconds.empty()) continue;
    Json& latency = all[name]["latency"];
    latency["value"] = median(seconds) * 1e9;
    if (seconds.size() < 2) continue;
    const auto [least, most] = std::ranges::minmax(seconds);
    latency["lower_value"] = least * 1e9;
    latency["upper_value"] = most * 1e9;
  }
  return text(all);
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

// Otava rejects empty cells. Gaps are filled as it fills those of other sources: with the previous
// value, the first ones with the first value.
std::vector<double> filled(const std::vector<Row>& rows, const std::string& name) {
  std::vector<double> values;
  double last = seconds_of(rows, name).front();
  for (const Row& row : rows) {
    const auto one = row.cases.find(name);
    if (one != row.cases.end() && one->second.seconds > 0) last = one->second.seconds;
    values.push_back(last);
  }
  return values;
}

std::string otava(const std::vector<Row>& rows) {
  std::string head = "time,commit,run";
  std::vector<std::string> lines;
  for (const Row& row : rows)
    lines.push_back(fmt::format("{},{},{}", row.run.date, csv_cell(row.run.commit), row.run.id));
  for (const std::string& name : names_of(rows)) {
    if (seconds_of(rows, name).empty()) continue;
    head += "," + csv_cell(name);
    const std::vector<double> values = filled(rows, name);
    for (std::size_t i = 0; i < rows.size(); ++i) lines[i] += fmt::format(",{}", values[i]);
  }
  return fmt::format("{}\n{}\n", head, fmt::join(lines, "\n"));
}

// "2026-11-22T10:00:00+01:00" in seconds since 1970, or 0.
std::int64_t epoch_s(const std::string& date) {
  std::tm time{};
  const char* zone = strptime(date.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (!zone) return 0;
  int hours = 0, minutes = 0;
  if (std::sscanf(zone, "%3d:%2d", &hours, &minutes) != 2) return timegm(&time);
  return timegm(&time) - 3600 * hours - (hours < 0 || *zone == '-' ? -60 : 60) * minutes;
}

std::string label(std::string_view name, const std::string& value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char c : value)
    text += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  return text + "\"";
}

std::string prometheus(const std::vector<Row>& rows) {
  const Row& row = rows.back();
  const auto family = [](std::string_view name, std::string_view help) {
    return fmt::format("# HELP {0} {1}\n# TYPE {0} gauge\n", name, help);
  };
  std::string seconds, passed;
  std::map<std::string, int> counts{{"pass", 0}, {"fail", 0}, {"skipped", 0}};
  for (const auto& [name, one] : row.cases) {
    ++counts[one.verdict];
    const std::string labels = fmt::format(
        "{{{},{}}}", label("unit", name.substr(0, name.find('/'))), label("case", name));
    if (one.seconds > 0)
      seconds += fmt::format("shardmark_case_seconds{} {}\n", labels, one.seconds);
    if (one.verdict != "skipped")
      passed += fmt::format("shardmark_case_passed{} {}\n", labels, one.verdict == "pass" ? 1 : 0);
  }
  std::string text =
      family("shardmark_run_timestamp_seconds", "When the run began.") +
      fmt::format("shardmark_run_timestamp_seconds {}\n", epoch_s(row.run.date)) +
      family("shardmark_run_info", "Host and commit of the run.") +
      fmt::format("shardmark_run_info{{{},{}}} 1\n", label("host", field(row.run, "host")),
                  label("commit", row.run.commit)) +
      family("shardmark_run_cases", "Cases of the run by their verdict.");
  for (const auto& [verdict, count] : counts)
    text += fmt::format("shardmark_run_cases{{{}}} {}\n", label("verdict", verdict), count);
  if (!passed.empty())
    text += family("shardmark_case_passed", "1 if no oracle failed, else 0.") + passed;
  if (!seconds.empty())
    text += family("shardmark_case_seconds", "Median time of the case in this run.") + seconds;
  return text;
}

}  // namespace

ExportFormat parse_export_format(std::string_view text) {
  const auto found = std::ranges::find(formats, text);
  if (found == formats.end()) throw UsageError(machine::unknown("--format", text, formats));
  return static_cast<ExportFormat>(found - formats.begin());
}

std::string exported(const History& history, ExportFormat format,
                     const std::vector<StoredRun>& runs, const std::vector<std::string>& cases) {
  const std::vector<std::string> known = history.cases();
  for (const std::string& name : cases)
    if (std::ranges::find(known, name) == known.end())
      throw UsageError(machine::unknown("case", name, known));
  if (runs.empty()) throw UsageError("the history contains no run");
  std::vector<Row> rows;
  for (const StoredRun& run : runs) {
    Row& row = rows.emplace_back(Row{run, {}});
    for (const CaseTime& one : history.cases_of(run.id))
      if (cases.empty() || std::ranges::find(cases, one.name) != cases.end())
        row.cases[one.name] = one;
  }
  constexpr std::string (*writers[])(const std::vector<Row>&) = {google_benchmark, bencher, otava,
                                                                 prometheus};  // by ExportFormat
  return writers[static_cast<std::size_t>(format)](rows);
}

}  // namespace harness
