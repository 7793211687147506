#include "suite/program/axes_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "suite/configuration/keys.h"
#include "suite/options/options.h"
#include "suite/program/scaling.h"

namespace suite {
namespace {

using harness::AxisInfo;

constexpr std::size_t help_columns = 100;

// Joins the values that fit into the columns: "a,b,c" or "a,b,..".
std::string joined(const std::vector<std::string>& values, std::size_t columns) {
  std::string text;
  for (const std::string& value : values) {
    const std::string next = text.empty() ? value : text + "," + value;
    const bool last = &value == &values.back();
    if (next.size() + (last ? 0 : 3) > columns) return text.empty() ? ".." : text + ",..";
    text = next;
  }
  return text;
}

// The allowed values and the default of an axis.
std::string allowed_text(const AxisInfo& axis, std::size_t columns) {
  std::string text;
  if (!axis.allowed.empty() && axis.allowed != axis.values)
    text += fmt::format("; allowed {}", joined(axis.allowed, columns));
  if (axis.values.size() > 1) text += fmt::format("; default {}", axis.usual);
  return text;
}

std::string names_text(const std::string& axis) {
  return fmt::format("{}", fmt::join(split_list(axis_options(axis)), ", "));
}

std::vector<std::string_view> oracle_names(const harness::Family& unit) {
  std::vector<std::string_view> names;
  for (const harness::Oracle oracle : unit.oracles()) names.push_back(name(oracle));
  return names;
}

}  // namespace

std::string axis_options(const std::string& axis) {
  const std::string brief = short_name(axis);
  return brief == axis ? "--" + axis : fmt::format("--{},--{}", brief, axis);
}

std::string axes_help(const std::vector<std::string>& units, const harness::PlanRequest& request) {
  std::string text;
  for (const harness::Family* unit : harness::families(units)) {
    const std::vector<AxisInfo> axes = unit->axes({request.profile, {}, request.device});
    std::size_t width = 0;
    for (const AxisInfo& axis : axes) width = std::max(width, names_text(axis.name).size());
    text += fmt::format("{}Axes of {}, with the values of profile {}:\n", text.empty() ? "" : "\n",
                        unit->name(), name(request.profile));
    for (const AxisInfo& axis : axes) {
      const std::size_t columns = help_columns - width - 4;
      const std::string allowed = allowed_text(axis, columns / 2 - 10);
      text += fmt::format("  {:<{}}  {}{}\n", names_text(axis.name), width,
                          joined(axis.values, columns - allowed.size()), allowed);
    }
  }
  return text +
         "An axis takes a value, a list (1,2,4) or a range (1:64:x4); shardmark list UNIT shows "
         "all.";
}

std::string unit_summary(const harness::Family& unit) {
  return fmt::format("{}: {}\n  oracles: {}\n", unit.name(), unit.about(),
                     fmt::join(oracle_names(unit), ", "));
}

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
      pages += fmt::format("| `{}` | {} | `{}` |\n", names_text(axis.name),
                           fmt::join(axis.values, ", "), axis.usual);
  }
  return table + pages;
}

std::string unit_slices(const harness::Family& unit, harness::Profile profile) {
  std::vector<std::pair<std::string, int>> slices;  // and how many cases
  for (const harness::PlannedCase& plan : unit.cases({profile})) {
    auto found = std::ranges::find(slices, plan.slice, &std::pair<std::string, int>::first);
    if (found == slices.end()) found = slices.insert(slices.end(), {plan.slice, 0});
    ++found->second;
  }
  std::vector<std::string> texts;
  for (const auto& [slice, cases] : slices) texts.push_back(fmt::format("{} {}", slice, cases));
  return fmt::format("  cases of {}: {}\n", name(profile), fmt::join(texts, ", "));
}

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
    text += fmt::format("  {}\n{}", names_text(axis.name), two_columns(rows));
  }
  return text;
}

}  // namespace suite
