#include "harness/unit/unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "machine/base/names.h"

namespace harness {
namespace {

// A local static, so that any translation unit may register units before main.
std::map<std::string, std::unique_ptr<Family>, std::less<>>& registry() {
  static std::map<std::string, std::unique_ptr<Family>, std::less<>> families;
  return families;
}

std::string case_name(std::string_view unit, const AxisValues& axes) {
  std::string name(unit);
  bool has_ranks = false;
  for (const auto& [axis, value] : axes) {
    name += fmt::format("/{}:{}", axis, value);
    has_ranks = has_ranks || axis == "ranks";
  }
  if (!has_ranks) throw std::logic_error(fmt::format("unit {} has no axis 'ranks'", unit));
  return name;
}

}  // namespace

std::vector<AxisInfo> detail::AnyFamily::axes(const PlanRequest& request) const {
  return unit_.sweep(request).axes(request.profile);
}

std::vector<PlannedCase> detail::AnyFamily::cases(const PlanRequest& request) const {
  std::vector<PlannedCase> planned;
  for (AnySweep::Selected& one : unit_.sweep(request).select(request.profile, request.flags)) {
    PlannedCase& plan = planned.emplace_back();
    plan.unit = unit_.name;
    plan.name = case_name(unit_.name, one.axes);
    plan.axes = std::move(one.axes);
    plan.slice = std::move(one.slice);
    plan.ranks = unit_.ranks(one.the_case.get());
    plan.traits = unit_.traits(one.the_case.get());
    plan.yardstick_is_part = unit_.yardstick_is_part;
    plan.oracles = unit_.oracles;
    plan.why_not = [why_not = unit_.why_not, c = one.the_case](const Context& context) {
      return why_not(c.get(), context);
    };
    plan.check_files = [check = unit_.check_files, c = one.the_case](const Files& files) {
      check(c.get(), files);
    };
    plan.make = [make = unit_.make, c = one.the_case](Context& context) {
      return make(c.get(), context);
    };
  }
  return planned;
}

bool add(std::unique_ptr<Family> family) {
  const std::string name(family->name());
  if (!registry().try_emplace(name, std::move(family)).second)
    throw std::logic_error(fmt::format("two units are named '{}'", name));
  return true;
}

std::vector<const Family*> families() {
  std::vector<const Family*> all;
  for (const auto& [name, family] : registry()) all.push_back(family.get());
  return all;
}

std::vector<const Family*> families(const std::vector<std::string>& units) {
  if (units.empty()) return families();
  std::vector<const Family*> selected;
  for (const std::string& unit : units) {
    const auto found = registry().find(unit);
    if (found == registry().end()) {
      std::vector<std::string> names;
      for (const auto& [name, family] : registry()) names.push_back(name);
      throw UsageError(machine::unknown("unit", unit, names));
    }
    const Family* family = found->second.get();
    if (std::ranges::find(selected, family) == selected.end()) selected.push_back(family);
  }
  return selected;
}

std::vector<PlannedCase> plan_cases(const std::vector<std::string>& units,
                                    const PlanRequest& request) {
  const std::vector<const Family*> selected = families(units);
  std::map<const Family*, std::set<std::string>> axes;
  std::set<std::string> known;
  for (const Family* family : selected)
    for (const AxisInfo& axis : family->axes(request)) {
      axes[family].insert(axis.name);
      known.insert("--" + axis.name);
    }
  for (const auto& [flag, text] : request.flags)
    if (!known.contains("--" + flag))
      throw UsageError(machine::unknown("flag", "--" + flag, {known.begin(), known.end()}));

  std::vector<PlannedCase> planned;
  std::string refusal;  // of an unnamed unit, which is left out if other units accept the flags
  for (const Family* family : selected) {
    PlanRequest own = request;
    std::erase_if(own.flags, [&](const auto& flag) { return !axes[family].contains(flag.first); });
    try {
      std::vector<PlannedCase> cases = family->cases(own);
      std::ranges::move(cases, std::back_inserter(planned));
    } catch (const UsageError& error) {
      const std::string text = fmt::format("{} (unit {})", error.what(), family->name());
      if (!units.empty()) throw UsageError(text);
      if (refusal.empty()) refusal = text;
    }
  }
  if (planned.empty() && !refusal.empty()) throw UsageError(refusal);
  if (!planned.empty()) return planned;
  std::string text =
      fmt::format("no case selected: {} in profile {}",
                  units.empty() ? "all units" : fmt::format("unit {}", fmt::join(units, ", ")),
                  name(request.profile));
  for (const auto& [axis, values] : request.flags) text += fmt::format(" --{} {}", axis, values);
  throw UsageError(text);
}

}  // namespace harness
