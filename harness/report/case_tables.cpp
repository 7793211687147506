// The tables of report.html with one row per unit and with one row per case.

#include <fmt/format.h>

#include <algorithm>

#include "harness/record/summary.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/report/page_parts.h"
#include "harness/report/sparkline.h"

namespace harness {
namespace {

struct Cell {
  std::string html;
  bool filled = false, number = false;
};

Cell number_cell(const std::string& text, double value) {
  return {sorted_cell(text, value), !text.empty(), true};
}

Cell text_cell(const std::string& text) {
  const bool number = !text.empty() && text.size() < 19 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  return {number ? fmt::format("<td class=\"number\" data-v=\"{0}\">{0}</td>", text)
                 : fmt::format("<td>{}</td>", escaped(text)),
          !text.empty(), number};
}

struct Column {
  std::string title;
  std::vector<std::string> cells;
  bool filled = false;  // in some case; empty columns are left out
  bool number = true;   // every filled cell is a number
};

std::vector<Column> columns_of(const std::vector<const Record*>& records, const UnitAxes& axes,
                               const Record* best) {
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
  add("Verdict", [best](const Record& record) {
    return Cell{
        fmt::format("<td><span class=\"verdict {0}\">{0}</span>{1}</td>", name(record.verdict),
                    &record == best ? " <span class=\"quiet\">best</span>" : ""),
        true};
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
  for (const auto& [title, key] : {std::pair{"MFU", "mfu"}, {"MFU of GEMM", "mfu_of_gemm"}})
    add(title, [key = key](const Record& record) {
      const double fraction = counter(record, key);
      return number_cell(percent(fraction), fraction);
    });
  add("Of limit", [](const Record& record) {
    const double fraction = counter(record, "limit_fraction");
    const bool stale = counter(record, "limit_is_stale") > 0;
    return number_cell(percent(fraction) + (stale ? " (stale)" : ""), fraction);
  });
  add("Expected", [](const Record& record) {
    const double seconds = counter(record, "expected_s");
    return number_cell(seconds > 0 ? html_seconds(seconds) : "", seconds);
  });
  add("Specified", [](const Record& record) {
    const double seconds = counter(record, "specified_s");
    return number_cell(seconds > 0 ? html_seconds(seconds) : "", seconds);
  });
  add("Of expectation", [](const Record& record) {
    const double fraction = counter(record, "expected_fraction");
    return number_cell(percent(fraction) + (below_expectation(record) ? " (below floor)" : ""),
                       fraction);
  });
  add("Of library", [](const Record& record) {
    const double speedup = counter(record, "speedup_over_library");
    return number_cell(speedup_text(record, "\xc3\x97"), speedup);
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
    head += fmt::format("<th scope=\"col\"{}>{}</th>", column.number ? " class=\"number\"" : "",
                        escaped(column.title));
  for (std::size_t row = 0; row < cases; ++row) {
    rows += "<tr>";
    for (const Column& column : columns) rows += column.cells[row];
    rows += "</tr>\n";
  }
  return table(label, "sortable cases", head, rows);
}

std::string verdict_cell(const Counts& counts) {
  const auto [ruling, text] =
      counts.failed > 0   ? std::pair{Ruling::fail, fmt::format("{} failed", counts.failed)}
      : counts.slow > 0   ? std::pair{Ruling::fail, fmt::format("{} too slow", counts.slow)}
      : counts.passed > 0 ? std::pair{Ruling::pass, std::string("pass")}
                          : std::pair{Ruling::skipped, std::string("skipped")};
  std::string skipped;
  if (counts.skipped > 0 && ruling != Ruling::skipped)
    skipped = fmt::format(" <span class=\"quiet\">{} skipped</span>", counts.skipped);
  return fmt::format("<td><span class=\"verdict {}\">{}</span>{}</td>", name(ruling), text,
                     skipped);
}

std::vector<const Record*> records_of(const RunFile& run, const std::string& unit) {
  std::vector<const Record*> records;
  for (const Record& record : run.records)
    if (record.unit == unit) records.push_back(&record);
  return records;
}

UnitAxes axes_of_cases(const std::vector<const Record*>& records) {
  std::vector<const Axes*> of_cases;
  for (const Record* record : records) of_cases.push_back(&record->axes);
  return axes_of(of_cases);
}

// expects: some unit has an expectation, so the table has that column.
std::string unit_row(const RunFile& run, const UnitSummary& unit, bool expects) {
  const Record* best = unit.best_case;
  return fmt::format(
      "<tr><td><a href=\"#unit-{0}\">{0}</a></td>{1}{2}{3}{4}{5}{6}{7}<td>{8}</td></tr>\n",
      escaped(unit.unit), verdict_cell(unit.counts),
      sorted_cell(std::to_string(unit.counts.cases()), unit.counts.cases()),
      sorted_cell(escaped(unit.best), best ? key_rate(*best).value : 0),
      sorted_cell(escaped(unit.wire), best ? counter(*best, "wire_GBps") : 0),
      sorted_cell(percent(unit.limit_fraction), unit.limit_fraction),
      expects ? sorted_cell(percent(unit.expected_fraction), unit.expected_fraction) : "",
      sorted_cell(best ? speedup_text(*best, "\xc3\x97") : "",
                  best ? counter(*best, "speedup_over_library") : 0),
      sparkline(records_of(run, unit.unit), best));
}

std::string unit_section(const UnitSummary& summary, const std::vector<const Record*>& records) {
  const std::string& unit = summary.unit;
  const UnitAxes axes = axes_of_cases(records);
  std::string fixed;
  for (const auto& [axis, value] : axes.fixed)
    fixed += fmt::format("{}<span class=\"nobreak\">{} <b>{}</b></span>", fixed.empty() ? "" : ", ",
                         escaped(axis), escaped(value));
  if (!fixed.empty()) fixed = fmt::format("<p class=\"fixed\">{}</p>\n", fixed);
  const bool failed = std::ranges::find(records, Ruling::fail, &Record::verdict) != records.end();
  return fmt::format(
      "<details class=\"unit\" id=\"unit-{0}\"{1}>\n<summary>{0} <span "
      "class=\"quiet\">{2}</span></summary>\n{3}{4}</details>\n",
      escaped(unit), failed ? " open" : "", counted(records.size(), "case"), fixed,
      table_of("Cases of " + unit, columns_of(records, axes, summary.best_case), records.size()));
}

}  // namespace

std::string unit_table(const RunFile& run) {
  std::string rows;
  const Summary summary = summarize(run.context, run.records);
  const bool expects = std::ranges::any_of(
      summary.units, [](const UnitSummary& unit) { return unit.expected_fraction > 0; });
  for (const UnitSummary& unit : summary.units) rows += unit_row(run, unit, expects);
  if (rows.empty()) return "<p class=\"note\">No case ran.</p>\n";
  return table("Table of units", "sortable units",
               heads({"Unit", "Verdict"}) +
                   number_heads({"Cases", "Best rate", "Wire", "Of limit"}) +
                   (expects ? number_heads({"Of expectation"}) : "") +
                   number_heads({"Of library"}) + heads({"Over size"}),
               rows) +
         "<p class=\"note\">The numbers of a row are those of its best case: the passed case with "
         "the highest rate, which its table marks. \xe2\x80\x9cWire\xe2\x80\x9d is the rate of the "
         "rank that sent most, as counted in the transport. \xe2\x80\x9cOf limit\xe2\x80\x9d is "
         "the time that the measured memory and link bandwidth or matrix rate alone would take, "
         "over the time taken. A case above 100\xe2\x80\x89% shows that a rate was measured too "
         "low. If the rate is still too low after three more, the limit is stale. A case with more "
         "ranks than cores has no limit. \xe2\x80\x9cOf "
         "expectation\xe2\x80\x9d is the time that "
         "the cluster of --expect promises, over the time taken. \xe2\x80\x9cOf "
         "library\xe2\x80\x9d is the library\xe2\x80\x99s time "
         "over ours; a star marks cases with more ranks than cores, in which a library that spins "
         "while it waits takes whole time slices. \xe2\x80\x9cOver size\xe2\x80\x9d is the rate, "
         "or without rates the time, over the size, on logarithmic axes; a dot marks the best "
         "case.</p>\n";
}

std::string case_tables(const RunFile& run) {
  std::string text;
  const Summary summary = summarize(run.context, run.records);
  for (const UnitSummary& unit : summary.units)
    text += unit_section(unit, records_of(run, unit.unit));
  return text;
}

}  // namespace harness
