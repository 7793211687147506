// The end of a run's console output.

#include <fmt/format.h>

#include <algorithm>

#include "harness/measure/statistics.h"
#include "harness/record/summary.h"
#include "harness/report/console.h"

namespace harness {
namespace {

constexpr std::size_t table_columns = 100;

std::string percent(double fraction) {
  return fraction > 0 ? fmt::format("{:.0f} %", 100 * fraction) : "";
}

// Aligns the first column left and the others right. Leaves out empty columns, and the last ones if
// they do not fit.
std::string aligned(std::vector<std::vector<std::string>> rows, std::size_t room) {
  for (std::size_t i = rows[0].size(); i-- > 0;)
    if (std::ranges::all_of(rows.begin() + 1, rows.end(),
                            [i](const auto& row) { return row[i].empty(); }))
      for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  std::vector<std::size_t> widths;  // of the columns that fit
  for (std::size_t used = 0; widths.size() < rows[0].size(); used += widths.back() + 2) {
    const auto width = [i = widths.size()](const auto& row) { return row[i].size(); };
    const std::size_t widest = width(std::ranges::max(rows, {}, width));
    if (!widths.empty() && used + widest > room) break;
    widths.push_back(widest);
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = fmt::format("{:<{}}  ", row[0], widths[0]);
    for (std::size_t i = 1; i < widths.size(); ++i)
      line += fmt::format("{:>{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::size_t room_of(const Terminal& terminal) {
  return terminal.interactive ? static_cast<std::size_t>(std::clamp(terminal.width(), 20, 100))
                              : table_columns;
}

// Adds the explanation of speedup_text's mark if the table shows it.
std::string with_footnote(std::string table) {
  if (table.find("x*\n") != std::string::npos)
    table +=
        "* more ranks than cores: a library that spins while it waits takes whole time slices\n";
  return table;
}

std::string unit_table(const Summary& summary, const Terminal& terminal) {
  std::vector<std::vector<std::string>> rows{{"unit", "cases", "passed", "failed", "skipped",
                                              "best", "wire", "of limit", "of expectation",
                                              "of library"}};
  // Columns without text are left out.
  const bool all_passed = summary.counts.passed == summary.counts.cases();
  const auto number = [&](int value) {
    return all_passed ? "" : value == 0 ? "-" : std::to_string(value);
  };
  for (const UnitSummary& unit : summary.units)
    rows.push_back({unit.unit, std::to_string(unit.counts.cases()), number(unit.counts.passed),
                    number(unit.counts.failed), number(unit.counts.skipped), unit.best, unit.wire,
                    percent(unit.limit_fraction), percent(unit.expected_fraction), unit.speedup});
  return with_footnote(aligned(rows, room_of(terminal)));
}

// "all_reduce  (transport shared_memory, dtype float)", a table of the varying axes and results.
std::string case_table(const std::string& unit, const std::vector<const Record*>& records,
                       const Terminal& terminal) {
  std::vector<const Axes*> of_cases;
  for (const Record* record : records) of_cases.push_back(&record->axes);
  const UnitAxes axes = axes_of(of_cases);
  // Fixed axes that the names show differ from the unit's defaults; the others need no mention.
  std::string fixed;
  for (const auto& [axis, value] : axes.fixed)
    if (plain(records[0]->name).find(fmt::format("/{}:{}", axis, value)) != std::string::npos)
      fixed += fmt::format("{}{} {}", fixed.empty() ? "" : ", ", axis, value);
  std::vector<std::vector<std::string>> rows{axes.varying};
  rows[0].insert(rows[0].begin(), "verdict");
  for (const char* title :
       {"time", "rate", "MFU", "of GEMM", "of limit", "of expectation", "of library"})
    rows[0].emplace_back(title);
  for (const Record* record : records) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(record->verdict == Ruling::fail ? "FAIL" : std::string(name(record->verdict)));
    for (const std::string& one : axes.varying) row.push_back(axis(*record, one));
    row.push_back(record->seconds > 0 ? seconds_text(record->seconds) : "");
    row.push_back(rate_text(*record));
    for (const char* key : {"mfu", "mfu_of_gemm", "limit_fraction", "expected_fraction"})
      row.push_back(percent(counter(*record, key)));
    row.push_back(speedup_text(*record));
  }
  return fmt::format("{}{}\n{}", unit, fixed.empty() ? "" : fmt::format("  ({})", fixed),
                     with_footnote(aligned(rows, room_of(terminal))));
}

constexpr std::size_t few_lines = 60;  // of case tables; more cases get one row per unit

std::string tables(const Summary& summary, const std::vector<Record>& records,
                   const Terminal& terminal, bool of_cases) {
  if (summary.units.empty()) return "";
  if (!of_cases || records.size() + 3 * summary.units.size() > few_lines)
    return "\n" + unit_table(summary, terminal);
  std::string text;
  for (const UnitSummary& unit : summary.units) {
    std::vector<const Record*> own;
    for (const Record& record : records)
      if (record.unit == unit.unit) own.push_back(&record);
    text += "\n" + case_table(unit.unit, own, terminal);
  }
  return text;
}

// Returns the longest cases, "   12.3 s     250 ms  gpt_step/ranks:4": the whole and what is not
// sampling, after the medians of all cases.
std::string durations_text(const std::vector<Record>& records, int count) {
  std::vector<const Record*> longest;
  for (const Record& record : records)
    if (counter(record, "case_s") > 0) longest.push_back(&record);
  if (longest.empty() || count <= 0) return "";
  const auto whole = [](const Record* one) { return counter(*one, "case_s"); };
  const auto fixed = [](const Record* one) {
    return counter(*one, "case_s") - counter(*one, "sampling_s");
  };
  const auto median_of = [&longest](const auto& seconds) {
    std::vector<double> all;
    for (const Record* one : longest) all.push_back(seconds(one));
    return seconds_text(median(all));
  };
  std::string text =
      fmt::format("\nLongest of {} cases, and without their samples (medians {}, {}):\n",
                  longest.size(), median_of(whole), median_of(fixed));
  std::ranges::stable_sort(longest, std::greater{}, whole);
  longest.resize(std::min(longest.size(), static_cast<std::size_t>(count)));
  for (const Record* one : longest)
    text += fmt::format("  {:>7}  {:>7}  {}\n", seconds_text(whole(one)), seconds_text(fixed(one)),
                        plain(one->name));
  return text;
}

// Returns the cases nearest to and farthest from their limits. Small messages, whose time is mostly
// start-up, are always far from them.
std::string limits_text(const std::vector<Record>& records, const Terminal& terminal) {
  const Record *nearest = nullptr, *farthest = nullptr;
  std::size_t above = 0, again = 0;
  const auto fraction = [](const Record* one) { return counter(*one, "limit_fraction"); };
  for (const Record& record : records) {
    const std::string_view kind = kind_of_case(record);
    again += counter(record, "limit_measured_again") > 0;
    const bool small = kind == "latency" || kind == "other";
    if (record.verdict != Ruling::pass || small || fraction(&record) <= 0) continue;
    if (fraction(&record) > 1) {
      ++above;
      continue;
    }
    if (!nearest || fraction(&record) > fraction(nearest)) nearest = &record;
    if (!farthest || fraction(&record) < fraction(farthest)) farthest = &record;
  }
  // A pipe gets the whole name, for `run CASE`.
  const auto line = [&](std::string_view title, const Record* one) {
    const std::string start = fmt::format("{} {:3.0f} %  ", title, 100 * fraction(one));
    const std::size_t room = terminal.interactive ? room_of(terminal) - start.size() : ~0U >> 1;
    return fmt::format("{}{}\n", start, fitted(plain(one->name), static_cast<int>(room)));
  };
  std::string text;
  if (nearest && nearest != farthest)
    text = "\n" + line("nearest to its limit:   ", nearest) +
           line("farthest from its limit:", farthest);
  if (above > 0)
    text +=
        fmt::format("{}above 100 % of the limit: {} case{}, so the measured rates are too low\n",
                    text.empty() ? "\n" : "", above, above == 1 ? "" : "s");
  if (again > 0)
    text += fmt::format("{}limits measured again after {} case{} exceeded them\n",
                        text.empty() ? "\n" : "", again, again == 1 ? "" : "s");
  return text;
}

// Returns the cases below their floor, the slowest first.
std::string expectations_text(const std::vector<Record>& records, const Terminal& terminal) {
  std::vector<const Record*> slow;
  for (const Record& record : records)
    if (below_expectation(record)) slow.push_back(&record);
  if (slow.empty()) return "";
  std::ranges::stable_sort(slow, {},
                           [](const Record* one) { return counter(*one, "expected_fraction"); });
  std::string text = "\nBelow the expected speed:\n";
  for (const Record* one : slow)
    text += fmt::format("  {}\n    {}\n", terminal.painted(Ruling::fail, plain(one->name)),
                        expectation_text(*one));
  return text;
}

}  // namespace

std::string summary_text(const RunContext& context, const std::vector<Record>& records,
                         const Terminal& terminal, const ConsoleOptions& options) {
  const Summary summary = summarize(context, records);
  std::string text = tables(summary, records, terminal, terminal.interactive && !options.verbose);
  if (summary.counts.failed > 0) {
    text += "\nFailed:\n";
    for (const Record& record : records) {
      if (record.verdict != Ruling::fail) continue;
      text += fmt::format("  {}\n", terminal.painted(Ruling::fail, plain(record.name)));
      for (const std::string& line : failure_lines(record)) text += fmt::format("    {}\n", line);
    }
  }
  text += expectations_text(records, terminal);
  if (!summary.skips.empty()) {
    text += "\nSkipped:\n";
    for (const SkipGroup& group : summary.skips) {
      std::string units;
      for (const auto& [unit, cases] : group.units)
        units += fmt::format("{}{} {}", units.empty() ? "" : ", ", unit, cases);
      text += fmt::format("  {:5}  {}  ({})\n", group.cases, plain(group.reason), units);
    }
  }
  text += durations_text(records, options.durations) + limits_text(records, terminal);
  if (!context.status_reason.empty())
    text += fmt::format("\n{}: {}\n", plain(context.status), plain(context.status_reason));
  text += fmt::format("\n{}\n", terminal.painted(summary.ruling, summary.line()));
  return text;
}

}  // namespace harness
