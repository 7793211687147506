#include "harness/report/junit.h"

#include <fmt/format.h>

#include "harness/record/summary.h"

namespace harness {
namespace {

std::string attribute(std::string_view name, std::string_view value) {
  return fmt::format(" {}=\"{}\"", name, escaped(plain(value)));
}

std::string property(std::string_view name, std::string_view value) {
  return fmt::format("<property{}{}/>\n", attribute("name", name), attribute("value", value));
}

// The duration of the case's timed iterations.
double case_seconds(const Record& record) {
  double total = 0;
  for (int i = 0; i < record.samples.iterations(); ++i)
    total += record.samples.seconds[static_cast<std::size_t>(i)];
  return total;
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
    for (const OracleResult& result : record.oracles)
      if (result.ruling == Ruling::fail) {
        kind = name(result.oracle);
        break;
      }
    std::string body;
    for (const std::string& line : failure_lines(record)) body += escaped(line) + "\n";
    text += fmt::format("      <failure{}{}>{}</failure>\n", attribute("message", record.reason),
                        attribute("type", kind), body);
  }
  if (record.verdict == Ruling::pass) {
    std::string out = fmt::format("median {}", seconds_text(record.seconds));
    if (const std::string rate = rate_text(record); !rate.empty()) out += ", " + rate;
    text += fmt::format("      <system-out>{}</system-out>\n", escaped(out));
  }
  return text + "    </testcase>\n";
}

}  // namespace

std::string junit_xml(const RunFile& run) {
  const Summary summary = summarize(run.context, run.records);
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  double seconds = 0;
  for (const Record& record : run.records) seconds += case_seconds(record);
  text += fmt::format(
      "<testsuites name=\"shardmark\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" "
      "time=\"{:.6f}\">\n",
      summary.counts.cases(), summary.counts.failed, summary.counts.skipped, seconds);
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
        attribute("name", unit.unit), unit.counts.cases(), unit.counts.failed, unit.counts.skipped,
        unit_seconds, attribute("timestamp", timestamp), attribute("hostname", run.host_name));
    text += "    <properties>\n";
    for (const auto& [name, value] : {std::pair{"profile", run.context.profile},
                                      {"command", run.context.command},
                                      {"status", run.context.status},
                                      {"status_reason", run.context.status_reason},
                                      {"verdict", summary.line()}})
      text += fmt::format("      {}", property(name, value));
    text += "    </properties>\n" + cases + "  </testsuite>\n";
  }
  return text + "</testsuites>\n";
}

void write_junit(const std::string& directory) {
  write_file(directory + "/junit.xml", junit_xml(read_run(directory)));
}

}  // namespace harness
