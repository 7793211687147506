#include "suite/program/axes_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

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

// Returns the allowed values and the default of an axis.
std::string allowed_text(const AxisInfo& axis, std::size_t columns) {
  std::string text;
  if (!axis.allowed.empty() && axis.allowed != axis.values)
    text += fmt::format("; allowed {}", joined(axis.allowed, columns));
  if (axis.values.size() > 1) text += fmt::format("; default {}", axis.usual);
  return text;
}

}  // namespace

std::string axis_options(const std::string& axis) {
  const std::string brief = short_name(axis);
  return brief == axis ? "--" + axis : fmt::format("--{},--{}", brief, axis);
}

std::string axis_names(const std::string& axis) {
  return fmt::format("{}", fmt::join(split_list(axis_options(axis)), ", "));
}

std::vector<std::string> unit_names() {
  std::vector<std::string> names;
  for (const harness::Family* unit : harness::families()) names.emplace_back(unit->name());
  return names;
}

std::vector<std::string> profile_names() {
  using enum harness::Profile;
  std::vector<std::string> names;
  for (const harness::Profile profile : {quick, acceptance, paper})
    names.emplace_back(name(profile));
  return names;
}

std::vector<std::string> axis_values(const std::vector<std::string>& units,
                                     const std::string& axis) {
  std::vector<std::string> all;
  for (const harness::Family* unit : harness::families(units))
    for (const AxisInfo& one : unit->axes({}))
      if (one.name == axis)
        for (const std::string& value : one.allowed.empty() ? one.values : one.allowed)
          if (std::ranges::find(all, value) == all.end()) all.push_back(value);
  return all;
}

namespace {

// Units with more axes than most_lines list the last ones together, down to least_lines.
constexpr std::size_t most_lines = 16, least_lines = 7;

// Returns whether one word describes the axis: the profile does not vary the axis, or it is a
// switch. Degrees always have their own line.
bool is_brief(const AxisInfo& axis) {
  const bool one = axis.values.size() == 1 && axis.values.front() == axis.usual;
  const bool is_switch = axis.usual == "off" && axis.values.size() == 2;
  return (one || is_switch) && short_name(axis.name) == axis.name;
}

// Returns all values of an axis, the default first.
std::vector<std::string> default_first(const AxisInfo& axis) {
  std::vector<std::string> all = axis.allowed.empty() ? axis.values : axis.allowed;
  std::erase(all, axis.usual);
  all.insert(all.begin(), axis.usual);
  return all;
}

// Moves axes without a short name from the end of `axes` to `brief`.
void shorten(std::vector<AxisInfo>& axes, std::vector<AxisInfo>& brief) {
  for (std::size_t at = axes.size(); at-- > 0 && axes.size() > least_lines;) {
    const AxisInfo& axis = axes[at];
    if (short_name(axis.name) != axis.name || axis.name == "ranks") continue;
    brief.insert(brief.begin(), axis);
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

// Lists axes with their values and counts those that the profile does not vary:
// "--b 1,2; --a, --c off,on; and 3 that quick does not vary".
std::string brief_text(const std::vector<AxisInfo>& axes, std::string_view profile) {
  constexpr std::size_t of_values = 50;  // columns
  std::vector<std::string> entries, switches;
  for (const AxisInfo& axis : axes) {
    if (axis.values.size() == 1) continue;
    const std::vector<std::string> all = default_first(axis);
    if (all == std::vector<std::string>{"off", "on"})
      switches.push_back("--" + axis.name);
    else
      entries.push_back(fmt::format("--{} {}", axis.name, joined(all, of_values)));
  }
  const std::size_t others = axes.size() - entries.size() - switches.size();
  for (std::size_t i = 0; i < switches.size(); ++i)
    entries.push_back(i + 1 < switches.size() ? switches[i] + "," : switches[i] + " off,on");
  if (others) entries.push_back(fmt::format("and {} that {} does not vary", others, profile));
  constexpr std::size_t columns = 110;                                   // one screen has few lines
  const std::size_t unordered = axes.size() - others - switches.size();  // fill gaps of lines
  std::stable_sort(  // long ones first leave fewer gaps
      entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(unordered),
      [](const std::string& one, const std::string& other) { return one.size() > other.size(); });
  std::vector<std::string> lines{"  also, the default first:"};
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool ends = i + 1 < entries.size() && !entries[i].ends_with(',');
    const std::string entry = " " + entries[i] + (ends ? ";" : "");
    const auto from = i < unordered ? lines.begin() : lines.end() - 1;
    const auto line = std::find_if(from, lines.end(), [&](const std::string& each) {
      return each.size() + entry.size() <= columns;
    });
    if (line == lines.end())
      lines.push_back("   " + entry);
    else
      *line += entry;
  }
  return entries.empty() ? "" : fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace

std::string axes_help(const std::vector<std::string>& units, const harness::PlanRequest& request) {
  std::string text;
  for (const harness::Family* unit : harness::families(units)) {
    std::vector<AxisInfo> axes = unit->axes({request.profile, {}, request.device}), brief;
    if (axes.size() > most_lines) {
      const auto rest = std::stable_partition(axes.begin(), axes.end(),
                                              [](const AxisInfo& axis) { return !is_brief(axis); });
      brief.assign(rest, axes.end());
      axes.erase(rest, axes.end());
      shorten(axes, brief);
    }
    std::size_t width = 0;
    for (const AxisInfo& axis : axes) width = std::max(width, axis_names(axis.name).size());
    text += fmt::format("{}Axes of {}, with the values of profile {}:\n", text.empty() ? "" : "\n",
                        unit->name(), name(request.profile));
    for (const AxisInfo& axis : axes) {
      const std::size_t columns = help_columns - width - 4;
      const std::string allowed = allowed_text(axis, columns / 2 - 10);
      text += fmt::format("  {:<{}}  {}{}\n", axis_names(axis.name), width,
                          joined(axis.values, columns - allowed.size()), allowed);
    }
    text += brief_text(brief, name(request.profile));
  }
  return text +
         "An axis takes a value, a list (1,2,4) or a range (1:64:x4); shardmark list UNIT shows "
         "all.";
}

}  // namespace suite
