// The tables of report.html about oracles and bits.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/record/summary.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/report/page_parts.h"

namespace harness {
namespace {

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
    return fmt::format("the same for all: {}", fmt::join(compared.algorithms, ", "));
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

// Returns the fraction of its bound that a finding uses; above one it fails.
double share(const OracleResult& result) {
  if (result.ruling == Ruling::fail) return std::numeric_limits<double>::infinity();
  return result.expected != 0 ? result.measured / result.expected : 0;
}

}  // namespace

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
  return table("Oracles", "wrapping",
               heads({"Oracle"}) + number_heads({"Cases", "Right", "Wrong"}) +
                   "<th scope=\"col\" class=\"number\" title=\"cases whose expectation iterates "
                   "the judged code's own "
                   "layout, plan or messages\">Shared reference</th>" +
                   heads({"Nearest to failing, or first failure"}),
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
  return fold(
      "", "Bits by algorithm",
      "<p class=\"note\">Algorithms whose results of real numbers have the same bits: a sum "
      "rounds in the order of its additions. Determinism, above, judges repeats, fresh "
      "communicators and replicas.</p>\n" +
          table("Bits by algorithm", "wrapping", heads({"Unit", "Case", "Bits of the result"}),
                rows));
}

}  // namespace harness
