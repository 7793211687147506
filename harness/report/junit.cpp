#include "harness/report/junit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "harness/record/summary.h"

namespace harness {
namespace {

constexpr std::string_view replacement = "\xef\xbf\xbd";
using Entity = std::pair<std::string_view, std::string_view>;
constexpr Entity entities[] = {
    {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}};

// Returns the length in bytes of the well-formed UTF-8 sequence at the start of text, or 0.
std::size_t sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > text.size()) return 0;
  std::uint32_t code = length == 1 ? first : first & (0xff >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return overlong || surrogate || code > 0x10ffff ? 0 : length;
}

bool allowed(std::string_view one) {
  const auto c = static_cast<unsigned char>(one[0]);
  if (one.size() == 1) return c >= 0x20 ? c != 0x7f : c == '\t' || c == '\n' || c == '\r';
  return one != "\xef\xbf\xbe" && one != "\xef\xbf\xbf";
}

std::string attribute(std::string_view name, std::string_view value) {
  return fmt::format(" {}=\"{}\"", name, escaped(plain(value)));
}

// Returns the total duration of the case's timed iterations.
double case_seconds(const Record& record) {
  const std::vector<double>& seconds = record.samples.seconds;
  return std::accumulate(seconds.begin(), seconds.begin() + record.samples.iterations(), 0.0);
}

std::string test_case(const Record& record) {
  std::string text = fmt::format(
      "    <testcase{}{} time=\"{:.6f}\">\n", attribute("classname", record.unit),
      attribute("name", record.repetition == 0
                            ? record.name
                            : fmt::format("{} (repetition {})", record.name, record.repetition)),
      case_seconds(record));
  if (record.verdict == Ruling::skipped)
    text += fmt::format("      <skipped{}/>\n", attribute("message", record.reason));
  if (record.verdict == Ruling::fail) {
    std::string_view kind = record.failure ? name(record.failure->kind) : "failure";
    const auto failed = std::ranges::find(record.oracles, Ruling::fail, &OracleResult::ruling);
    if (failed != record.oracles.end()) kind = name(failed->oracle);
    std::string body;
    for (const std::string& line : failure_lines(record)) body += escaped(line) + "\n";
    text += fmt::format("      <failure{}{}>{}</failure>\n", attribute("message", record.reason),
                        attribute("type", kind), body);
  }
  if (below_expectation(record))
    text += fmt::format("      <failure{} type=\"expectation\"/>\n",
                        attribute("message", expectation_text(record)));
  if (record.verdict == Ruling::pass) {
    std::string out = fmt::format("median {}", seconds_text(record.seconds));
    if (const std::string rate = rate_text(record); !rate.empty()) out += ", " + rate;
    text += fmt::format("      <system-out>{}</system-out>\n", escaped(out));
  }
  return text + "    </testcase>\n";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence(text);
    const std::string_view one = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(one.size());
    const auto* const entity = std::ranges::find(entities, one, &Entity::first);
    if (length == 0 || !allowed(one))
      out += replacement;
    else
      out += entity != std::end(entities) ? entity->second : one;
  }
  return out;
}

std::string junit_xml(const RunFile& run) {
  const Summary summary = summarize(run.context, run.records);
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  double seconds = 0;
  for (const Record& record : run.records) seconds += case_seconds(record);
  text += fmt::format(
      "<testsuites name=\"shardmark\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" "
      "time=\"{:.6f}\">\n",
      summary.counts.cases(), summary.counts.failed + summary.counts.slow, summary.counts.skipped,
      seconds);
  // The offset is not part of the format's timestamp.
  const std::string timestamp = run.date.substr(0, 19);
  for (const UnitSummary& unit : summary.units) {
    double unit_seconds = 0;
    std::string cases;
    for (const Record& record : run.records) {
      if (record.unit != unit.unit) continue;
      unit_seconds += case_seconds(record);
      cases += test_case(record);
    }
    text += fmt::format(
        "  <testsuite{} tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" "
        "time=\"{:.6f}\"{}{}>\n",
        attribute("name", unit.unit), unit.counts.cases(), unit.counts.failed + unit.counts.slow,
        unit.counts.skipped, unit_seconds, attribute("timestamp", timestamp),
        attribute("hostname", run.host_name));
    text += "    <properties>\n";
    for (const auto& [name, value] : {std::pair{"profile", run.context.profile},
                                      {"command", run.context.command},
                                      {"status", run.context.status},
                                      {"status_reason", run.context.status_reason},
                                      {"verdict", summary.line()}})
      text += fmt::format("      <property{}{}/>\n", attribute("name", name),
                          attribute("value", value));
    text += "    </properties>\n" + cases + "  </testsuite>\n";
  }
  return text + "</testsuites>\n";
}

void write_junit(const std::string& directory) {
  write_file(directory + "/junit.xml", junit_xml(read_run(directory)));
}

}  // namespace harness
