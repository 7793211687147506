#include "harness/unit/unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <set>

#include "machine/base/names.h"

namespace harness {
namespace {

// A local static, so that any translation unit may register units before main.
std::map<std::string, std::unique_ptr<Family>, std::less<>>& registry() {
  static std::map<std::string, std::unique_ptr<Family>, std::less<>> families;
  return families;
}

const Family* registered(std::string_view unit) {
  const auto found = registry().find(unit);
  return found == registry().end() ? nullptr : found->second.get();
}

bool names_case(std::string_view name) { return name.find('/') != std::string_view::npos; }

// Sets every axis by a flag, so that exactly one case is selected.
std::vector<PlannedCase> named_case(const std::string& name, const PlanRequest& request) {
  const auto [unit, axes] = read_case_name(name);
  const Family& family = *families({unit}).front();
  for (const auto& [axis, value] : request.flags)
    if (std::ranges::find(family.defaults(), axis, &AxisValues::value_type::first) !=
        family.defaults().end())
      throw UsageError(
          fmt::format("--{} is {}; the case '{}' determines all axes", axis, value, name));
  PlanRequest own = request;
  for (const auto& axis : axes)  // a configuration has its own defaults
    if (!request.configuration.has_value() ||
        std::ranges::find(family.defaults(), axis) == family.defaults().end())
      own.flags.insert(axis);
  return family.cases(own);
}

}  // namespace

std::vector<AxisInfo> detail::AnyFamily::axes(const PlanRequest& request) const {
  return unit_.sweep(request).axes(request.profile);
}

const AxisValues& detail::AnyFamily::defaults() const {
  std::call_once(once_, [this] {
    for (const AxisInfo& axis : axes({})) defaults_.emplace_back(axis.name, axis.usual);
  });
  return defaults_;
}

std::string case_name(std::string_view unit, const AxisValues& axes) {
  const Family* const family = registered(unit);
  std::string name(unit);
  for (const auto& axis : axes)
    if (!family || axis.first == "ranks" ||
        std::ranges::find(family->defaults(), axis) == family->defaults().end())
      name += fmt::format("/{}:{}", axis.first, axis.second);
  return name;
}

NamedCase read_case_name(std::string_view name) {
  NamedCase named;
  for (const auto range : std::views::split(name, '/')) {
    const std::string part(range.begin(), range.end());
    const std::size_t colon = part.find(':');
    if (named.unit.empty())
      named.unit = part;
    else if (colon != std::string::npos)
      named.axes.emplace_back(part.substr(0, colon), part.substr(colon + 1));
  }
  if (const Family* const family = registered(named.unit)) {
    AxisValues all = family->defaults();
    for (const auto& [axis, value] : named.axes) {
      const auto place = std::ranges::find(all, axis, &AxisValues::value_type::first);
      if (place == all.end())
        all.emplace_back(axis, value);
      else
        place->second = value;
    }
    named.axes = std::move(all);
  }
  return named;
}

std::optional<machine::Transport> transport_of(const AxisValues& axes) {
  for (const auto& [axis, value] : axes)
    for (const auto transport : machine::all_transports)
      if (axis == "transport" && value == machine::name(transport)) return transport;
  return std::nullopt;
}

// Selects the cases for CUDA tensors. A case whose transport is the default for tensors of the host
// uses all transports between CUDA devices that its unit supports.
std::vector<AnySweep::Selected> detail::AnyFamily::select_on_cuda(
    const PlanRequest& request) const {
  const auto without_transport = [](AxisValues axes) {
    std::erase_if(axes, [](const auto& axis) { return axis.first == "transport"; });
    return axes;
  };
  std::vector<AnySweep::Selected> selected =
      unit_.sweep(request).select(request.profile, request.flags);
  std::vector<AnySweep::Selected> between_devices;
  PlanRequest over = request;
  for (const auto transport : usual_transports(request.device)) {
    over.flags["transport"] = machine::name(transport);
    std::ranges::move(unit_.sweep(over).select_valid(over.profile, over.flags),
                      std::back_inserter(between_devices));
  }
  std::set<AxisValues> replaced;
  for (const auto& one : between_devices) replaced.insert(without_transport(one.axes));
  std::erase_if(selected,
                [&](const auto& one) { return replaced.contains(without_transport(one.axes)); });
  std::ranges::move(between_devices, std::back_inserter(selected));
  return selected;
}

std::vector<PlannedCase> detail::AnyFamily::cases(const PlanRequest& request) const {
  bool of_the_host = false;
  if (request.device == machine::Device::Kind::cuda && !request.flags.contains("transport"))
    for (const AxisInfo& axis : axes(request))
      of_the_host |= axis.name == "transport" &&
                     axis.usual == machine::name(machine::Transport::shared_memory);
  std::vector<PlannedCase> planned;
  for (AnySweep::Selected& one :
       of_the_host ? select_on_cuda(request)
                   : unit_.sweep(request).select(request.profile, request.flags)) {
    PlannedCase& plan = planned.emplace_back();
    plan.unit = unit_.name;
    plan.name = case_name(unit_.name, one.axes);
    if (std::ranges::find(one.axes, "ranks", &AxisValues::value_type::first) == one.axes.end())
      throw std::logic_error(fmt::format("unit {} has no axis 'ranks'", unit_.name));
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
  for (const std::string& name : units) {
    const std::string unit = name.substr(0, name.find('/'));
    const Family* family = registered(unit);
    if (!family) {
      std::vector<std::string> names;
      for (const auto& [name, family] : registry()) names.push_back(name);
      throw UsageError(machine::unknown("unit", unit, names));
    }
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
  std::set<std::string> names;  // a unit may repeat a named case
  const auto take = [&](std::vector<PlannedCase> cases) {
    for (PlannedCase& one : cases)
      if (names.insert(one.name).second) planned.push_back(std::move(one));
  };
  std::vector<std::string> whole_units;
  for (const std::string& name : units) {
    if (names_case(name))
      take(named_case(name, request));
    else
      whole_units.push_back(name);
  }
  if (whole_units.empty() && !units.empty()) return planned;

  std::string refusal;  // of an unnamed unit, which is left out if other units accept the flags
  for (const Family* family : families(whole_units)) {
    PlanRequest own = request;
    std::erase_if(own.flags, [&](const auto& flag) { return !axes[family].contains(flag.first); });
    try {
      take(family->cases(own));
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
