// `shardmark report` and `shardmark health`: the reports of a run directory.

#include <fmt/format.h>

#include "harness/diagnose/health.h"
#include "harness/report/html.h"
#include "harness/report/junit.h"
#include "harness/run/run.h"
#include "suite/options/options.h"
#include "suite/program/commands.h"

namespace suite {

std::string write_reports(const std::string& directory) {
  harness::write_junit(directory);
  const std::string missing = harness::write_report(directory);
  return missing.empty() ? "" : fmt::format("figures: missing ({})\n", missing);
}

int print_health(const std::string& directory, std::FILE* out) {
  constexpr int unknown = 3;
  try {
    const harness::Health health = harness::health_of(directory);
    fmt::print(out, "{}", health_text(health));
    return static_cast<int>(health.level);
  } catch (const std::exception& error) {
    return complain(unknown, error.what());
  }
}

int run_report(int argc, char** argv) {
  std::vector<std::string> runs;
  Options options("report", "RUN", "Writes report.html and junit.xml of a run directory again.");
  options.arguments("RUN", runs, "a run directory", 1, 1);
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  const std::string missing = write_reports(runs[0]);
  fmt::print("{}/report.html\n{}", runs[0], missing);
  return harness::accepted;
}

int run_health(int argc, char** argv) {
  std::vector<std::string> runs;
  Options options("health", "RUN",
                  "Reports which ranks, hosts and links of a run to take out of service.");
  options.arguments("RUN", runs, "a run directory", 1, 1);
  options.footer("Exit codes: 0 OK, 1 WARN, 2 CRITICAL, 3 the run cannot be read.");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  return print_health(runs[0]);
}

}  // namespace suite
