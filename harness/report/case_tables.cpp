// The tables of report.html: units, cases, oracles.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/record/summary.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"

namespace harness {
namespace {

// data-v: the value that a column is sorted by.
std::string number_cell(const std::string& text, double value) {
  return text.empty() ? "<td></td>"
                      : fmt::format("<td class=\"number\" data-v=\"{}\">{}</td>", value, text);
}

std::string text_cell(const std::string& text) {
  const bool number = !text.empty() && text.size() < 19 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return number ? fmt::format("<td class=\"number\" data-v=\"{0}\">{0}</td>", text)
                : fmt::format("<td>{}</td>", escaped(text));
}

std::string percent(double fraction) {
  return fraction > 0 ? fmt::format("{:.0f}\xe2\x80\x89%", 100 * fraction) : "";
}

std::string times(double factor) { return factor > 0 ? fmt::format("{:.2f}\xc3\x97", factor) : ""; }

std::string verdict_cell(const Record& record) {
  return fmt::format("<td><span class=\"verdict {0}\">{0}</span></td>", name(record.verdict));
}

struct UnitAxes {
  std::vector<std::string> varying;                        // columns
  std::vector<std::pair<std::string, std::string>> fixed;  // one value in all cases
};

UnitAxes axes_of(const std::vector<const Record*>& records) {
  std::vector<std::string> names;
  std::map<std::string, std::set<std::string>> values;
  std::map<std::string, std::size_t> seen;
  for (const Record* record : records)
    for (const auto& [axis, value] : record->axes) {
      if (!seen.contains(axis)) names.push_back(axis);
      ++seen[axis];
      values[axis].insert(value);
    }
  UnitAxes axes;
  for (const std::string& name : names) {
    if (values[name].size() > 1 || seen[name] < records.size())
      axes.varying.push_back(name);
    else
      axes.fixed.emplace_back(name, *values[name].begin());
  }
  return axes;
}

struct Column {
  std::string title;
  std::vector<std::string> cells;
  bool filled = false;  // in some case; empty columns are left out
  bool number = true;   // every filled cell is a number

  void text(const std::string& value) {
    const std::string cell = text_cell(value);
    filled = filled || !value.empty();
    number = number && (value.empty() || cell.find("data-v") != std::string::npos);
    cells.push_back(cell);
  }
  void value(const std::string& shown, double sorted_by) {
    filled = filled || !shown.empty();
    cells.push_back(number_cell(shown, sorted_by));
  }
};

std::vector<Column> columns_of(const std::vector<const Record*>& records, const UnitAxes& axes) {
  std::vector<Column> columns;
  const auto add = [&](const std::string& title) -> Column& {
    return columns.emplace_back(Column{title, {}});
  };
  Column& verdict = add("Verdict");
  verdict.filled = true;
  verdict.number = false;
  for (const Record* record : records) verdict.cells.push_back(verdict_cell(*record));
  for (const std::string& axis : axes.varying) {
    Column& column = add(axis);
    for (const Record* record : records) {
      const auto found =
          std::ranges::find(record->axes, axis, &std::pair<std::string, std::string>::first);
      column.text(found == record->axes.end() ? "" : found->second);
    }
  }
  const auto same_slice = [&](const Record* record) {
    return record->slice == records.front()->slice;
  };
  if (!std::ranges::all_of(records, same_slice)) {
    Column& column = add("Slice");
    for (const Record* record : records) column.text(record->slice);
  }
  // cell: the shown text, or empty, and the value to sort by.
  using Cell = std::pair<std::string, double>;
  const auto numbers = [&](const std::string& title, const auto& cell) {
    Column& column = add(title);
    for (const Record* record : records) {
      const auto [shown, sorted_by] = cell(*record);
      column.value(shown, sorted_by);
    }
  };
  if (std::ranges::any_of(records, [](const Record* record) { return record->repetition > 0; }))
    numbers("Repetition", [](const Record& record) {
      return Cell{std::to_string(record.repetition), record.repetition};
    });
  numbers("Median", [](const Record& record) {
    return Cell{record.seconds > 0 ? html_seconds(record.seconds) : "", record.seconds};
  });
  numbers("95\xe2\x80\x89% interval", [](const Record& record) {
    const double low = counter(record, "ci_low_s"), high = counter(record, "ci_high_s");
    if (low <= 0 || high <= 0) return Cell{"", low};
    return Cell{fmt::format("{} \xe2\x80\x93 {}", html_seconds(low), html_seconds(high)), low};
  });
  numbers("Rate", [](const Record& record) {
    const std::string rate = rate_text(record);
    return Cell{rate, rate.empty() ? 0 : std::stod(rate)};
  });
  numbers("Wire", [](const Record& record) {
    return Cell{wire_text(record), counter(record, "wire_GBps")};
  });
  for (const auto& [title, key] : {std::pair{"GEMM slow-down", "gemm_slowdown"},
                                   {"Collective slow-down", "collective_slowdown"},
                                   {"Overlap", "overlap_fraction"}})
    numbers(title, [key = key](const Record& record) {
      const auto found = record.counters.find(key);
      return Cell{found == record.counters.end() ? "" : fmt::format("{:.2f}", found->second),
                  counter(record, key)};
    });
  numbers("Of limit", [](const Record& record) {
    const double fraction = counter(record, "limit_fraction");
    return Cell{percent(fraction), fraction};
  });
  numbers("Of library", [](const Record& record) {
    const double speedup = counter(record, "speedup_over_library");
    return Cell{times(speedup), speedup};
  });
  Column& reason = add("Reason");
  reason.number = false;
  for (const Record* record : records) {
    reason.filled = reason.filled || !record->reason.empty();
    reason.cells.push_back(fmt::format("<td class=\"long\">{}</td>", escaped(record->reason)));
  }
  std::erase_if(columns, [](const Column& column) { return !column.filled; });
  return columns;
}

std::string table_of(const std::string& label, const std::vector<Column>& columns,
                     std::size_t cases) {
  std::string head, rows;
  for (const Column& column : columns)
    head += fmt::format("<th{}>{}</th>", column.number ? " class=\"number\"" : "",
                        escaped(column.title));
  for (std::size_t row = 0; row < cases; ++row) {
    rows += "<tr>";
    for (const Column& column : columns) rows += column.cells[row];
    rows += "</tr>\n";
  }
  return table(label, "cases", head, rows);
}

std::string unit_section(const std::string& unit, const std::vector<const Record*>& records) {
  const UnitAxes axes = axes_of(records);
  std::string fixed;
  for (const auto& [axis, value] : axes.fixed)
    fixed += fmt::format("{}<span class=\"nobreak\">{} <b>{}</b></span>", fixed.empty() ? "" : ", ",
                         escaped(axis), escaped(value));
  if (!fixed.empty()) fixed = fmt::format("<p class=\"fixed\">{}</p>\n", fixed);
  return fmt::format(
      "<details class=\"unit\" id=\"unit-{0}\" open>\n<summary>{0} <span class=\"quiet\">{1} "
      "case{2}</span></summary>\n{3}{4}</details>\n",
      escaped(unit), records.size(), records.size() == 1 ? "" : "s", fixed,
      table_of("Cases of " + unit, columns_of(records, axes), records.size()));
}

// The fraction of its bound that a finding uses; above one it fails.
double share(const OracleResult& result) {
  if (result.ruling == Ruling::fail) return std::numeric_limits<double>::infinity();
  return result.expected != 0 ? result.measured / result.expected : 0;
}

}  // namespace

std::string overview_table(const RunFile& run) {
  std::string rows;
  for (const UnitSummary& unit : summarize(run.context, run.records).units) {
    const auto count = [](int value) {
      return fmt::format("<td class=\"number\">{}</td>",
                         value == 0 ? "\xe2\x80\x93" : std::to_string(value));
    };
    rows += fmt::format(
        "<tr><td><a href=\"#unit-{0}\">{0}</a></td>{1}{2}{3}{4}<td class=\"number\">{5}</td><td "
        "class=\"number\">{6}</td>"
        "<td class=\"number\">{7}</td></tr>\n",
        escaped(unit.unit), count(unit.counts.cases()), count(unit.counts.passed),
        count(unit.counts.failed), count(unit.counts.skipped), escaped(unit.best),
        percent(unit.limit_fraction), times(unit.speedup));
  }
  if (rows.empty()) return "<p class=\"note\">No case ran.</p>\n";
  return table("Units", "overview",
               "<th>Unit</th>" + number_heads({"Cases", "Passed", "Failed", "Skipped", "Best rate",
                                               "Of limit", "Of library"}),
               rows) +
         "<p class=\"note\">\xe2\x80\x9cWire\xe2\x80\x9d, in the cases, is what the rank that sent "
         "most put "
         "on the wire per second, as counted in the transport. "
         "\xe2\x80\x9cOf limit\xe2\x80\x9d is the time that the measured memory and link "
         "bandwidth or matrix rate alone would take, over the "
         "time taken; \xe2\x80\x9cof library\xe2\x80\x9d the library\xe2\x80\x99s time over ours. "
         "Both are medians over the cases that passed. A library that spins while it waits takes "
         "the "
         "time of whole turns where ranks share cores, so with more ranks than cores that says "
         "little of its algorithms.</p>\n";
}

std::string case_tables(const RunFile& run) {
  std::string text;
  for (const UnitSummary& unit : summarize(run.context, run.records).units) {
    std::vector<const Record*> records;
    for (const Record& record : run.records)
      if (record.unit == unit.unit) records.push_back(&record);
    text += unit_section(unit.unit, records);
  }
  return text;
}

std::string oracle_table(const RunFile& run) {
  std::string rows;
  for (const Oracle oracle : all_oracles) {
    Counts counts;
    const OracleResult* worst = nullptr;
    const Record* where = nullptr;
    int shared = 0;
    for (const Record& record : run.records)
      for (const OracleResult& result : record.oracles) {
        if (result.oracle != oracle) continue;
        ++(result.ruling == Ruling::pass   ? counts.passed
           : result.ruling == Ruling::fail ? counts.failed
                                           : counts.skipped);
        shared += result.reference == Reference::shared;
        if (!worst || share(result) > share(*worst)) {
          worst = &result;
          where = &record;
        }
      }
    if (!worst) continue;
    std::string nearest = escaped(worst->text);
    if (worst->ruling != Ruling::fail && oracle == Oracle::numerics && worst->expected != 0)
      nearest = fmt::format("{:.0f}\xe2\x80\x89% of its bound: {}", 100 * share(*worst), nearest);
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{}</td><td class=\"number\">{}</td>"
        "<td>{}<br><span class=\"quiet\">{}</span></td></tr>\n",
        name(oracle), counts.cases(), counts.passed, counts.failed, shared, nearest,
        breakable(where->name));
  }
  if (rows.empty()) return "<p class=\"note\">No oracle ruled.</p>\n";
  return table(
      "Oracles", "wrapping",
      "<th>Oracle</th>" + number_heads({"Cases", "Right", "Wrong"}) +
          "<th class=\"number\" title=\"cases whose expectation iterates the judged code's own "
          "layout, plan or messages\">Shared reference</th><th>Nearest to failing, or the "
          "first that failed</th>",
      rows);
}

}  // namespace harness
