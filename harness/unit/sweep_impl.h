#pragma once
// The templates of sweep.h.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/unit/sweep.h"
#include "machine/base/error.h"
#include "machine/base/names.h"

namespace harness {

template <class Case>
template <class T>
Sweep<Case>& Sweep<Case>::axis(std::string name, T Case::*field,
                               std::type_identity_t<std::vector<T>> values,
                               std::type_identity_t<std::vector<T>> allowed) {
  for (const Axis& other : axes_) SHARDMARK_CHECK(other.info.name, !=, name);
  Axis axis;
  axis.info.name = name;
  for (const auto& value : allowed) axis.info.allowed.push_back(AxisText<T>::format(value));
  for (const auto& value : values) {
    axis.info.values.push_back(AxisText<T>::format(value));
    check_allowed(axis.info, axis.info.values.back());
  }
  axis.expand = [name](std::string_view text) {
    std::vector<std::string> texts;
    for (const auto& value : AxisText<T>::parse_list(name, text)) {
      std::string one = AxisText<T>::format(value);
      if (std::find(texts.begin(), texts.end(), one) == texts.end())
        texts.push_back(std::move(one));
    }
    return texts;
  };
  axis.set = [name, field](Case& the_case, std::string_view text) {
    the_case.*field = AxisText<T>::parse(name, text);
  };
  axes_.push_back(std::move(axis));
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::usual(std::string_view axis, std::string value) {
  const auto named = std::find_if(axes_.begin(), axes_.end(),
                                  [&](const Axis& one) { return one.info.name == axis; });
  SHARDMARK_CHECK(named - axes_.begin(), <, std::ssize(axes_));
  SHARDMARK_CHECK(std::count(named->info.values.begin(), named->info.values.end(), value), ==, 1);
  named->usual = std::move(value);
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::only(std::function<std::string(const Case&)> why_no_case) {
  only_.push_back(std::move(why_no_case));
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::sample(std::function<bool(const Case&)> keep) {
  sample_.push_back(std::move(keep));
  return *this;
}

template <class Case>
std::vector<AxisInfo> Sweep<Case>::axes() const {
  std::vector<AxisInfo> infos;
  for (const Axis& axis : axes_) infos.push_back(axis.info);
  return infos;
}

template <class Case>
std::vector<std::pair<Case, AxisValues>> Sweep<Case>::cases(const AxisFlags& flags) const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) names.push_back(axis.info.name);
  for (const auto& [flag, text] : flags)
    if (std::find(names.begin(), names.end(), flag) == names.end())
      throw UsageError(machine::unknown("axis", flag, names));

  std::vector<std::vector<std::string>> values;  // by axis
  for (const Axis& axis : axes_) {
    const auto flag = flags.find(axis.info.name);
    values.push_back(flag != flags.end()            ? axis.expand(flag->second)
                     : axis.usual && !flags.empty() ? std::vector{*axis.usual}
                                                    : axis.info.values);
    for (const std::string& value : values.back()) check_allowed(axis.info, value);
  }

  // One case is changed in place, and copied where it is kept: the product may have millions.
  std::vector<std::pair<Case, AxisValues>> cases;
  std::map<std::pair<std::string, std::string>, std::string> refused;  // (axis, value) -> why
  std::set<std::pair<std::string, std::string>> kept;
  Case the_case{};
  AxisValues chosen(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) chosen[i].first = axes_[i].info.name;
  const auto consider = [&] {
    if (flags.empty())
      for (const auto& keep : sample_)
        if (!keep(the_case)) return;
    std::string why;
    for (const auto& only : only_)
      if (why = only(the_case); !why.empty()) break;
    if (why.empty()) cases.emplace_back(the_case, chosen);
    if (flags.empty()) return;
    for (const auto& one : chosen) {
      if (why.empty())
        kept.insert(one);
      else
        refused.try_emplace(one, why);
    }
  };
  const auto choose = [&](const auto& self, std::size_t axis) -> void {
    if (axis == axes_.size()) return consider();
    for (const std::string& value : values[axis]) {
      axes_[axis].set(the_case, value);
      chosen[axis].second = value;
      self(self, axis + 1);
    }
  };
  choose(choose, 0);
  std::erase_if(refused, [&](const auto& one) {
    return !flags.contains(one.first.first) || kept.contains(one.first);
  });
  if (refused.empty()) return cases;
  const auto& [one, why] = *refused.begin();
  // Of several values the reason alone says which is to blame.
  throw UsageError(refused.size() > 1 ? why : fmt::format("{} {}: {}", one.first, one.second, why));
}

}  // namespace harness
