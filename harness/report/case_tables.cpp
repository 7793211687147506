// The tables of report.html: units, cases, oracles, bits.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/record/summary.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"

namespace harness {
namespace {

struct Cell {
  std::string html;
  bool filled = false, number = false;
};

// data-v: the value that a column is sorted by.
Cell number_cell(const std::string& text, double value) {
  return {text.empty() ? "<td></td>"
                       : fmt::format("<td class=\"number\" data-v=\"{}\">{}</td>", value, text),
          !text.empty(), true};
}

Cell text_cell(const std::string& text) {
  const bool number = !text.empty() && text.size() < 19 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return {number ? fmt::format("<td class=\"number\" data-v=\"{0}\">{0}</td>", text)
                 : fmt::format("<td>{}</td>", escaped(text)),
          !text.empty(), number};
}

std::string percent(double fraction) {
  return fraction > 0 ? fmt::format("{:.0f}\xe2\x80\x89%", 100 * fraction) : "";
}

std::string times(double factor) { return factor > 0 ? fmt::format("{:.2f}\xc3\x97", factor) : ""; }

struct Column {
  std::string title;
  std::vector<std::string> cells;
  bool filled = false;  // in some case; empty columns are left out
  bool number = true;   // every filled cell is a number
};

std::vector<Column> columns_of(const std::vector<const Record*>& records, const UnitAxes& axes) {
  std::vector<Column> columns;
  const auto add = [&](const std::string& title, const auto& cell_of) {
    Column column{title, {}};
    for (const Record* record : records) {
      Cell cell = cell_of(*record);
      column.filled = column.filled || cell.filled;
      column.number = column.number && (cell.number || !cell.filled);
      column.cells.push_back(std::move(cell.html));
    }
    if (column.filled) columns.push_back(std::move(column));
  };
  add("Verdict", [](const Record& record) {
    return Cell{
        fmt::format("<td><span class=\"verdict {0}\">{0}</span></td>", name(record.verdict)), true};
  });
  for (const std::string& name : axes.varying)
    add(name, [&](const Record& record) { return text_cell(axis(record, name)); });
  const auto same_slice = [&](const Record* record) {
    return record->slice == records.front()->slice;
  };
  if (!std::ranges::all_of(records, same_slice))
    add("Slice", [](const Record& record) { return text_cell(record.slice); });
  if (std::ranges::any_of(records, [](const Record* record) { return record->repetition > 0; }))
    add("Repetition", [](const Record& record) {
      return number_cell(std::to_string(record.repetition), record.repetition);
    });
  add("Median", [](const Record& record) {
    return number_cell(record.seconds > 0 ? html_seconds(record.seconds) : "", record.seconds);
  });
  add("95\xe2\x80\x89% interval", [](const Record& record) {
    const double low = counter(record, "ci_low_s"), high = counter(record, "ci_high_s");
    if (low <= 0 || high <= 0) return number_cell("", low);
    return number_cell(fmt::format("{} \xe2\x80\x93 {}", html_seconds(low), html_seconds(high)),
                       low);
  });
  add("Rate", [](const Record& record) {
    const std::string rate = rate_text(record);
    return number_cell(rate, rate.empty() ? 0 : std::stod(rate));
  });
  add("Wire", [](const Record& record) {
    return number_cell(wire_text(record), counter(record, "wire_GBps"));
  });
  for (const auto& [title, key] : {std::pair{"GEMM slow-down", "gemm_slowdown"},
                                   {"Collective slow-down", "collective_slowdown"},
                                   {"Overlap", "overlap_fraction"}})
    add(title, [key = key](const Record& record) {
      const auto found = record.counters.find(key);
      return number_cell(found == record.counters.end() ? "" : fmt::format("{:.2f}", found->second),
                         counter(record, key));
    });
  add("Of limit", [](const Record& record) {
    const double fraction = counter(record, "limit_fraction");
    return number_cell(percent(fraction), fraction);
  });
  add("Of library", [](const Record& record) {
    const double speedup = counter(record, "speedup_over_library");
    return number_cell(times(speedup), speedup);
  });
  add("Reason", [](const Record& record) {
    return Cell{fmt::format("<td class=\"long\">{}</td>", escaped(record.reason)),
                !record.reason.empty()};
  });
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
  std::vector<const Axes*> of_cases;
  for (const Record* record : records) of_cases.push_back(&record->axes);
  const UnitAxes axes = axes_of(of_cases);
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

// A case without its transport: the request, its size and the algorithm.
struct Asked {
  std::string unit, about, size, algorithm;
};

Asked asked(const Record& record) {
  Asked result{record.unit, "", "", ""};
  for (const auto& [axis, value] : record.axes) {
    if (axis == "algorithm")
      result.algorithm = value;
    else if (axis == "bytes")
      result.size = value;
    else if (axis != "transport" && axis != "inner")
      result.about += fmt::format("{}{} {}", result.about.empty() ? "" : ", ", axis, value);
  }
  return result;
}

using Classes = std::map<std::string, std::set<std::string>>;  // algorithms by fingerprint

struct Compared {
  std::set<std::string> algorithms;
  std::map<std::string, Classes> sizes;
};

std::string cell_of(const Compared& compared) {
  const auto& [size, most] = *std::ranges::max_element(
      compared.sizes, {}, [](const auto& one) { return one.second.size(); });
  if (most.size() == 1)
    return fmt::format("the same of all: {}", fmt::join(compared.algorithms, ", "));
  // An algorithm whose bits depend on transport or inner is in several classes.
  std::string text = fmt::format("{} different", most.size());
  if (!size.empty()) text += fmt::format(" at {} bytes", size);
  char separator = ':';
  for (const auto& [fingerprint, algorithms] : most) {
    text += fmt::format("{} {}", separator, fmt::join(algorithms, " = "));
    separator = ';';
  }
  return text;
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
      return value == 0 ? "\xe2\x80\x93" : std::to_string(value);
    };
    rows += fmt::format(
        "<tr><td><a href=\"#unit-{0}\">{0}</a></td>{1}</tr>\n", escaped(unit.unit),
        number_cells({count(unit.counts.cases()), count(unit.counts.passed),
                      count(unit.counts.failed), count(unit.counts.skipped), escaped(unit.best),
                      percent(unit.limit_fraction), times(unit.speedup)}));
  }
  if (rows.empty()) return "<p class=\"note\">No case ran.</p>\n";
  return table("Units", "overview",
               "<th>Unit</th>" + number_heads({"Cases", "Passed", "Failed", "Skipped", "Best rate",
                                               "Of limit", "Of library"}),
               rows) +
         "<p class=\"note\">\xe2\x80\x9cWire\xe2\x80\x9d, in the cases, is the rate of the rank "
         "that sent "
         "most, as counted in the transport. "
         "\xe2\x80\x9cOf limit\xe2\x80\x9d is the time that the measured memory and link bandwidth "
         "or "
         "matrix rate alone would take, over the time taken. \xe2\x80\x9cOf library\xe2\x80\x9d is "
         "the "
         "library\xe2\x80\x99s time over ours. Both are medians over the cases that passed. A "
         "library that "
         "spins while it waits takes whole time slices if ranks share cores, so with more ranks "
         "than "
         "cores its time says little about its algorithms.</p>\n";
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
        counts.add(result.ruling);
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
    rows += fmt::format("<tr><td>{}</td>{}<td>{}<br><span class=\"quiet\">{}</span></td></tr>\n",
                        name(oracle),
                        number_cells({std::to_string(counts.cases()), std::to_string(counts.passed),
                                      std::to_string(counts.failed), std::to_string(shared)}),
                        nearest, breakable(where->name));
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

std::string bits_table(const RunFile& run) {
  std::map<std::pair<std::string, std::string>, Compared> all;
  for (const Record& record : run.records) {
    if (record.verdict != Ruling::pass || record.fingerprint.empty()) continue;
    const Asked what = asked(record);
    if (what.algorithm.empty() || what.algorithm == "auto") continue;
    Compared& compared = all[{what.unit, what.about}];
    compared.algorithms.insert(what.algorithm);
    compared.sizes[what.size][record.fingerprint].insert(what.algorithm);
  }
  std::string rows;
  for (const auto& [key, compared] : all)
    if (compared.algorithms.size() > 1)
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escaped(key.first),
                          escaped(key.second), escaped(cell_of(compared)));
  if (rows.empty()) return "";
  return "<h3>Bits by algorithm</h3>\n<p class=\"note\">Algorithms whose results of real numbers "
         "have "
         "the same bits: a sum rounds in the order of its additions. Determinism, above, judges "
         "repeats, "
         "fresh communicators and replicas.</p>\n" +
         table("Bits by algorithm", "wrapping",
               "<th>Unit</th><th>Case</th><th>Bits of the result</th>", rows);
}

}  // namespace harness
