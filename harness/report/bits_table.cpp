// The algorithms whose results have the same bits, by the fingerprints of real-valued results: what
// changes with the algorithm.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "harness/report/html.h"
#include "harness/report/junit.h"

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
  const std::string* size = nullptr;
  const Classes* most = nullptr;
  for (const auto& [of, classes] : compared.sizes)
    if (!most || classes.size() > most->size()) {
      size = &of;
      most = &classes;
    }
  if (most->size() == 1)
    return fmt::format("the same of all: {}", fmt::join(compared.algorithms, ", "));
  // An algorithm whose bits depend on transport or inner is in several classes.
  std::string text = fmt::format("{} different", most->size());
  if (!size->empty()) text += fmt::format(" at {} bytes", *size);
  char separator = ':';
  for (const auto& [fingerprint, algorithms] : *most) {
    text += fmt::format("{} {}", separator, fmt::join(algorithms, " = "));
    separator = ';';
  }
  return text;
}

}  // namespace

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
  return "<h3>Bits by algorithm</h3>\n<p class=\"note\">Whether real numbers give the same bits by "
         "another algorithm: sums round in the order that the algorithm adds in. That repeats, "
         "fresh communicators and replicas agree is judged above, under determinism.</p>\n" +
         table("Bits by algorithm", "wrapping",
               "<th>Unit</th><th>Case</th><th>Bits of the result</th>", rows);
}

}  // namespace harness
