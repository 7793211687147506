#include "suite/comparison/comparing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/run/run.h"
#include "machine/base/names.h"

namespace suite::comparison {

using harness::RunComparison;
using harness::TimeVerdict;

void Comparing::add_options(Options& to) {
  to.group("Comparing");
  to.texts("--factor", "NAME", options.factors,
           "what may differ: a field of environment.json (NCCL_ALGO, nccl, host), an axis, or "
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
            throw harness::UsageError(machine::unknown("--fail-on", name, names));
          fail_on.push_back(name);
        }
      },
      fmt::format("exit with 1 also for {}; repeatable", fmt::join(names, ", ")),
      Options::Times::each);
  to.flag("--all", all, "list every case");
}

int Comparing::exit_code(const RunComparison& comparison) const {
  if (!comparison.comparable) return harness::usage;
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

std::string refusal(const RunComparison& comparison) {
  std::vector<std::string> fields;
  for (const harness::Difference& d : comparison.differences)
    if (!d.declared) fields.push_back(d.field);
  if (fields.empty())
    return fmt::format("not comparable: launches of one side differ: {}", comparison.mixed.at(0));
  constexpr std::size_t few = 4;
  const std::size_t more = fields.size() > few ? fields.size() - few : 0;
  fields.resize(fields.size() - more);
  return fmt::format("not comparable: {}{} {}; declare what is being compared with --factor NAME",
                     fmt::join(fields, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
                     fields.size() == 1 ? "differs" : "differ");
}

}  // namespace suite::comparison
