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
namespace detail {

template <class Case, class Field, class T>
typename Variation<Case>::Value value_of(Field field, const T& value) {
  return {[field, value](Case& the_case) { std::invoke(field, the_case) = value; },
          AxisText<T>::format(value)};
}

template <class Case, class Field, class T>
Variation<Case> vary(Field field, const std::vector<T>& values) {
  Variation<Case> variation{field, {}};
  for (const T& value : values) variation.values.push_back(value_of<Case>(field, value));
  return variation;
}

}  // namespace detail

template <class Case, class T>
Variation<Case> vary(T Case::*field, std::type_identity_t<std::vector<T>> values) {
  return detail::vary<Case>(field, values);
}

template <class Case, class T>
Variation<Case> vary(T& (*field)(Case&), std::type_identity_t<std::vector<T>> values) {
  return detail::vary<Case>(field, values);
}

// The texts of a flag's values, each once.
template <class T>
std::vector<std::string> axis_texts(std::string_view axis, std::string_view text) {
  std::vector<std::string> texts;
  for (const T& value : AxisText<T>::parse_list(axis, text)) {
    std::string one = AxisText<T>::format(value);
    if (std::ranges::find(texts, one) == texts.end()) texts.push_back(std::move(one));
  }
  return texts;
}

template <class Case>
template <class Field>
Sweep<Case>& Sweep<Case>::axis(const std::string& name, Field field,
                               std::type_identity_t<ValueOf<Field>> usual,
                               std::type_identity_t<std::vector<ValueOf<Field>>> allowed) {
  using Text = AxisText<ValueOf<Field>>;
  for (const Axis& other : axes_) {
    SHARDMARK_CHECK(other.info.name, !=, name);
    SHARDMARK_CHECK(other.is(field) ? other.info.name : "", ==, "");
  }
  Axis axis;
  axis.info.name = name;
  for (const auto& value : allowed) axis.info.allowed.push_back(Text::format(value));
  axis.is = [field](const std::any& other) {
    const Field* const same = std::any_cast<Field>(&other);
    return same && *same == field;
  };
  axis.parse = [info = axis.info, field](std::string_view text) {
    Values values;
    std::set<std::string> texts;
    for (const ValueOf<Field>& value : Text::parse_list(info.name, text)) {
      auto one = detail::value_of<Case>(field, value);
      check_allowed(info, one.text);
      if (texts.insert(one.text).second) values.push_back(std::move(one));
    }
    return values;
  };
  if constexpr (std::is_same_v<ValueOf<Field>, bool>) axis.info.allowed = {"off", "on"};
  axis.usual = {detail::value_of<Case>(field, usual)};
  axis.info.usual = axis.usual.front().text;
  check_allowed(axis.info, axis.usual.front().text);
  axes_.push_back(std::move(axis));
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::axis(
    const AxisInfo& info, const std::function<std::vector<std::string>(std::string_view)>& expand,
    std::function<void(Case&, const std::string&)> set) {
  for (const Axis& other : axes_) SHARDMARK_CHECK(other.info.name, !=, info.name);
  check_allowed(info, info.usual);
  const auto value = [set](const std::string& text) {
    return
        typename Variation<Case>::Value{[set, text](Case& the_case) { set(the_case, text); }, text};
  };
  axes_.push_back({info,
                   [name = info.name](const std::any& other) {
                     const auto* const same = std::any_cast<std::string>(&other);
                     return same && *same == name;
                   },
                   [info, expand, value](std::string_view text) {
                     Values values;
                     for (const std::string& one : expand(text)) {
                       check_allowed(info, one);
                       values.push_back(value(one));
                     }
                     return values;
                   },
                   {value(info.usual)}});
  return *this;
}

template <class Case>
std::size_t Sweep<Case>::axis_of(const std::any& field) const {
  const auto found = std::ranges::find_if(axes_, [&](const Axis& axis) { return axis.is(field); });
  SHARDMARK_CHECK(found - axes_.begin(), <, std::ssize(axes_));
  return static_cast<std::size_t>(found - axes_.begin());
}

template <class Case>
Sweep<Case>& Sweep<Case>::slice(std::vector<Profile> profiles, std::string name,
                                const std::vector<Variation<Case>>& variations, Diagonal diagonal) {
  Slice slice{std::move(profiles), std::move(name), {}, diagonal};
  for (const Variation<Case>& variation : variations) {
    const std::size_t axis = axis_of(variation.field);
    for (const auto& value : variation.values) check_allowed(axes_[axis].info, value.text);
    SHARDMARK_CHECK(slice.values.count(axis), ==, 0U);
    slice.values[axis] = variation.values;
  }
  slices_.push_back(std::move(slice));
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::only(std::function<std::string(const Case&)> why_no_case) {
  only_.push_back(std::move(why_no_case));
  return *this;
}

template <class Case>
bool Sweep<Case>::has(const Slice& slice, Profile profile) {
  return std::ranges::find(slice.profiles, profile) != slice.profiles.end();
}

template <class Case>
std::vector<AxisInfo> Sweep<Case>::axes(Profile profile) const {
  std::vector<AxisInfo> infos;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    AxisInfo& info = infos.emplace_back(axes_[i].info);
    for (const Slice& slice : slices_) {
      if (!has(slice, profile)) continue;
      const auto varied = slice.values.find(i);
      for (const auto& value : varied == slice.values.end() ? axes_[i].usual : varied->second)
        if (std::ranges::find(info.values, value.text) == info.values.end())
          info.values.push_back(value.text);
    }
  }
  return infos;
}

template <class Case>
std::vector<typename Sweep<Case>::Selected> Sweep<Case>::cases(Profile profile,
                                                               const AxisFlags& flags) const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) names.push_back(axis.info.name);
  for (const auto& [flag, text] : flags)
    if (std::ranges::find(names, flag) == names.end())
      throw UsageError(machine::unknown("axis", flag, names));
  std::map<std::size_t, Values> given;  // by axis
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (const auto flag = flags.find(names[i]); flag != flags.end())
      given[i] = axes_[i].parse(flag->second);

  std::vector<Selected> cases;
  std::set<AxisValues> kept;
  std::map<std::pair<std::string, std::string>, std::string> refused;  // (axis, value) -> why
  std::set<std::pair<std::string, std::string>> accepted;
  for (const Slice& slice : slices_) {
    if (!has(slice, profile)) continue;
    std::vector<const Values*> values;  // by axis
    bool whole = true;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const auto replaced = given.find(i);
      const auto varied = slice.values.find(i);
      values.push_back(replaced != given.end()        ? &replaced->second
                       : varied != slice.values.end() ? &varied->second
                                                      : &axes_[i].usual);
      whole = whole && (replaced == given.end() || varied == slice.values.end());
    }
    const Diagonal diagonal = whole ? slice.diagonal : Diagonal{};
    Case the_case = start_;
    std::vector<const std::string*> texts(axes_.size());
    const auto consider = [&] {
      std::string why;
      for (const auto& only : only_)
        if (why = only(the_case); !why.empty()) break;
      for (const auto& [axis, unused] : given) {
        if (why.empty())
          accepted.emplace(names[axis], *texts[axis]);
        else
          refused.try_emplace({names[axis], *texts[axis]}, why);
      }
      if (!why.empty()) return;
      AxisValues chosen;
      for (std::size_t i = 0; i < axes_.size(); ++i) chosen.emplace_back(names[i], *texts[i]);
      if (kept.insert(chosen).second) cases.push_back({the_case, std::move(chosen), slice.name});
    };
    const auto choose = [&](const auto& self, std::size_t axis, std::size_t sum) -> void {
      if (axis == axes_.size()) {
        if (sum % diagonal.of == diagonal.at) consider();
        return;
      }
      for (std::size_t i = 0; i < values[axis]->size(); ++i) {
        const auto& value = (*values[axis])[i];
        value.set(the_case);
        texts[axis] = &value.text;
        self(self, axis + 1, slice.values.contains(axis) ? sum + i : sum);
      }
    };
    choose(choose, 0, 0);
  }
  std::erase_if(refused, [&](const auto& one) { return accepted.contains(one.first); });
  if (refused.empty()) return cases;
  const auto& [one, why] = *refused.begin();
  // With several values only the reason tells which one is wrong.
  throw UsageError(refused.size() > 1 ? why : fmt::format("{} {}: {}", one.first, one.second, why));
}

}  // namespace harness
