#include "suite/comparison/comparing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/run/run.h"
#include "machine/base/names.h"
#include "suite/comparison/commands.h"
#include "suite/files/new_file.h"

namespace suite::comparison {

using harness::RunComparison;
using harness::TimeVerdict;
using harness::UsageError;

namespace {

std::string floors_text() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const harness::Floor& floor : harness::floors())
    rows.emplace_back(floor.kind, fmt::format("{:>3.0f} %  {}", 100 * floor.ratio, floor.reason));
  return fmt::format(
      "Smallest relevant changes of time:\n{}\n"
      "Exit codes: 0; 1 a case is SLOWER or a number changed; 2 not comparable.",
      two_columns(rows));
}

// Returns one line: the differences and the remedy.
std::string refusal(const RunComparison& comparison) {
  std::vector<std::string> fields;
  for (const harness::Difference& d : comparison.differences)
    if (!d.declared) fields.push_back(d.field);
  if (fields.empty())
    return fmt::format("not comparable: launches of one side differ: {}", comparison.mixed.at(0));
  constexpr std::size_t few = 4;
  const std::size_t more = fields.size() > few ? fields.size() - few : 0;
  fields.resize(fields.size() - more);
  return fmt::format("not comparable: {}{} {}; declare each intended difference with --factor NAME",
                     fmt::join(fields, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
                     fields.size() == 1 ? "differs" : "differ");
}

}  // namespace

void Comparing::add_options(Options& to) {
  to.group("Comparing");
  to.texts("--factor", "NAME", options.factors,
           "intended difference: a field of environment.json (NCCL_ALGO, nccl, host), an axis, or "
           "numbers; repeatable");
  to.read(
      "--floor", "PERCENT",
      [this](const std::string& text) {
        options.floor = real_number("--floor", text, 0, 1000) / 100;
      },
      "smallest relevant change of time, for all cases");
  const std::vector<std::string> names{"inconclusive", "missing", "faster", "unsteady"};
  to.read(
      "--fail-on", "NAME",
      [this, names](const std::string& text) {
        for (const std::string& name : split_list(text)) {
          if (std::ranges::find(names, name) == names.end())
            throw UsageError(machine::unknown("--fail-on", name, names));
          fail_on.push_back(name);
        }
      },
      fmt::format("exit with 1 also for {}; repeatable", fmt::join(names, ", ")),
      Options::Times::each);
  to.flag("--all", all, "list every case");
}

int Comparing::end(const RunComparison& comparison) const {
  if (!comparison.comparable) return complain(harness::usage, refusal(comparison));
  const auto asked = [&](std::string_view what) {
    return std::ranges::find(fail_on, what) != fail_on.end();
  };
  const bool missing = !comparison.only_base.empty() || !comparison.only_next.empty() ||
                       !comparison.not_in_all.empty();
  const bool unsteady = comparison.changed_numbers() < static_cast<int>(comparison.numbers.size());
  const bool failed = comparison.count(TimeVerdict::slower) > 0 ||
                      (comparison.changed_numbers() > 0 && !comparison.numbers_declared) ||
                      (asked("inconclusive") && comparison.count(TimeVerdict::inconclusive) > 0) ||
                      (asked("faster") && comparison.count(TimeVerdict::faster) > 0) ||
                      (asked("missing") && missing) || (asked("unsteady") && unsteady);
  return failed ? harness::case_failed : harness::accepted;
}

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
          "compare requires BASE and NEW, but {} {} given; for several launches per side use "
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
  return comparing.end(comparison);
}

}  // namespace suite::comparison
