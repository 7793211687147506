// `shardmark compare`: two runs, or two sets of launches.

#include <fmt/format.h>

#include "harness/run/run.h"
#include "suite/comparison/commands.h"
#include "suite/comparison/comparing.h"
#include "suite/files/new_file.h"

namespace suite::comparison {
namespace {

using harness::RunComparison;
using harness::UsageError;

std::string floors_text() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const harness::Floor& floor : harness::floors())
    rows.emplace_back(floor.kind, fmt::format("{:>3.0f} %  {}", 100 * floor.ratio, floor.reason));
  return fmt::format(
      "Smallest relevant changes of time:\n{}\n"
      "Exit codes: 0; 1 a case is SLOWER or a number changed; 2 not comparable.",
      two_columns(rows));
}

}  // namespace

int run_compare(int argc, char** argv) {
  std::vector<std::string> base_runs, next_runs;
  std::string json_file;
  Comparing comparing;
  Options options("compare", "BASE NEW",
                  "Compares launches of the same cases: SLOWER, FASTER, EQUIVALENT or INCONCLUSIVE "
                  "for each, and every number that changed. BASE and NEW are run directories or "
                  "folders of them.\n"
                  "shardmark compare BASE... --against NEW... compares several launches.");
  options.arguments("BASE", base_runs, "runs of BASE, and of NEW if --against is not given");
  options.takes_following("--against", "NEW...", next_runs, "the launches of NEW");
  options.text("--json", "FILE", json_file, "write the comparison as JSON");
  comparing.add_options(options);
  options.footer(floors_text());
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (next_runs.empty()) {
    if (base_runs.size() != 2)
      throw UsageError(fmt::format(
          "compare requires BASE and NEW, but {} {} given; for several launches a side use "
          "folders of them, or BASE... --against NEW...",
          base_runs.size(), base_runs.size() == 1 ? "is" : "are"));
    next_runs.push_back(base_runs[1]);
    base_runs.pop_back();
  } else if (base_runs.empty()) {
    throw UsageError("compare requires BASE before --against");
  }
  if (!json_file.empty()) check_writable(json_file);
  std::vector<std::string> notes;
  const auto base = harness::read_launches(base_runs, "BASE", notes);
  const auto next = harness::read_launches(next_runs, "NEW", notes);
  RunComparison comparison = harness::compare(base, next, comparing.options);
  comparison.notes = notes;
  fmt::print("{}", harness::text(comparison, comparing.all));
  if (!json_file.empty()) {
    const std::string json = harness::json(comparison);
    NewFile file(json_file);
    file.write(json.data(), json.size());
    file.commit();
    fmt::print("{}\n", json_file);
  }
  std::fflush(stdout);
  const int code = comparing.exit_code(comparison);
  return comparison.comparable ? code : complain(code, refusal(comparison));
}

}  // namespace suite::comparison
