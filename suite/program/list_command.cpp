// `shardmark list`: the units; with UNIT its axes, in each profile.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "harness/run/run.h"
#include "harness/unit/unit.h"
#include "suite/configuration/keys.h"
#include "suite/options/options.h"
#include "suite/program/axes_text.h"
#include "suite/program/commands.h"

namespace suite {
namespace {

using harness::AxisInfo;

std::vector<std::string_view> oracle_names(const harness::Family& unit) {
  std::vector<std::string_view> names;
  for (const harness::Oracle oracle : unit.oracles()) names.push_back(name(oracle));
  return names;
}

// Lists a unit with its oracles.
std::string unit_summary(const harness::Family& unit) {
  return fmt::format("{}: {}\n  oracles: {}\n", unit.name(), unit.about(),
                     fmt::join(oracle_names(unit), ", "));
}

// Returns a Markdown page of the units: a table, then a table of each unit's axes.
std::string units_page(const std::vector<const harness::Family*>& units) {
  std::string table =
      "# Units\n\n`shardmark list --markdown` writes this page. Values are those of the profile "
      "acceptance.\n\n| unit | judged by | |\n|---|---|---|\n";
  std::string pages;
  for (const harness::Family* unit : units) {
    table += fmt::format("| [{0}](#{0}) | {1} | {2} |\n", unit->name(),
                         fmt::join(oracle_names(*unit), ", "), unit->about());
    pages += fmt::format("\n## {}\n\n{}\n\n| axis | values | default |\n|---|---|---|\n",
                         unit->name(), unit->about());
    for (const AxisInfo& axis : unit->axes({harness::Profile::acceptance}))
      pages += fmt::format("| `{}` | {} | `{}` |\n", axis_names(axis.name),
                           fmt::join(axis.values, ", "), axis.usual);
  }
  return table + pages;
}

// Lists the unit's slices in a profile with their numbers of cases.
std::string unit_slices(const harness::Family& unit, harness::Profile profile) {
  std::vector<std::pair<std::string, int>> slices;  // name, number of cases
  for (const harness::PlannedCase& plan : unit.cases({profile})) {
    const auto found = std::ranges::find(slices, plan.slice, &std::pair<std::string, int>::first);
    if (found == slices.end())
      slices.emplace_back(plan.slice, 1);
    else
      ++found->second;
  }
  std::vector<std::string> texts;
  for (const auto& [slice, cases] : slices) texts.push_back(fmt::format("{} {}", slice, cases));
  return fmt::format("  cases of {}: {}\n", name(profile), fmt::join(texts, ", "));
}

// Lists the unit's axes: all values of each profile, the allowed values and the default.
std::string unit_axes(const harness::Family& unit, const std::vector<harness::Profile>& profiles) {
  std::string text;
  for (const AxisInfo& axis : unit.axes({profiles.front()})) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const harness::Profile profile : profiles)
      for (const AxisInfo& there : unit.axes({profile})) {
        if (there.name != axis.name) continue;
        const std::string values = fmt::format("{}", fmt::join(there.values, ", "));
        if (rows.empty() || rows.back().second != values)
          rows.emplace_back(name(profile), values);
        else
          rows.back().first += fmt::format(", {}", name(profile));
      }
    if (!axis.allowed.empty())
      rows.emplace_back("allowed", fmt::format("{}", fmt::join(axis.allowed, ", ")));
    rows.emplace_back("default", axis.usual);
    if (const auto* key = configuration::find_key(&configuration::Key::axis, axis.name))
      rows.emplace_back("meaning", key->about);
    for (auto& [title, values] : rows) title = fmt::format("    {}", title);
    text += fmt::format("  {}\n{}", axis_names(axis.name), two_columns(rows));
  }
  return text;
}

}  // namespace

int run_list(int argc, char** argv) {
  std::vector<std::string> units;
  std::vector<harness::Profile> profiles;
  Options options("list", "[UNIT...]",
                  "Lists all units with their oracles; with UNIT, its axes in each profile.");
  options.arguments("UNIT", units, "a unit");
  options.argument_choices(unit_names);
  options.read(
      "--profile", "NAME",
      [&profiles](const std::string& text) { profiles.push_back(harness::parse_profile(text)); },
      "only this profile: quick, acceptance or paper", Options::Times::each);
  options.choices(profile_names);
  bool markdown = false;
  options.flag("--markdown", markdown, "write a page of the documentation");
  if (!options.parse({argv + 2, argv + argc})) return harness::accepted;
  if (markdown) {
    fmt::print("{}", units_page(harness::families(units)));
    return harness::accepted;
  }
  if (profiles.empty())
    profiles = {harness::Profile::quick, harness::Profile::acceptance, harness::Profile::paper};
  for (const harness::Family* unit : harness::families(units)) {
    fmt::print("{}", unit_summary(*unit));
    if (units.empty()) continue;
    for (const harness::Profile profile : profiles) fmt::print("{}", unit_slices(*unit, profile));
    fmt::print("{}", unit_axes(*unit, profiles));
  }
  if (units.empty()) fmt::print("shardmark list UNIT lists the axes of a unit.\n");
  return harness::accepted;
}

}  // namespace suite
