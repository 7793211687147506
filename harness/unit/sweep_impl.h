#pragma once
// The templates of sweep.h.

#include <algorithm>

#include "harness/unit/sweep.h"

namespace harness {
namespace detail {

// A function that makes the setter of a value.
template <class Case, class T, class Field>
std::function<Setter(const T&)> setter_of(Field field) {
  return [field](const T& value) -> Setter {
    return [field, value](void* the_case) {
      std::invoke(field, *static_cast<Case*>(the_case)) = value;
    };
  };
}

template <class T>
Variation vary(std::any field, const std::function<Setter(const T&)>& set,
               const std::vector<T>& values);

}  // namespace detail

template <class Case, class T>
Variation vary(T Case::*field, std::type_identity_t<std::vector<T>> values) {
  return detail::vary<T>(field, detail::setter_of<Case, T>(field), values);
}

template <class Case, class T>
Variation vary(T& (*field)(Case&), std::type_identity_t<std::vector<T>> values) {
  return detail::vary<T>(field, detail::setter_of<Case, T>(field), values);
}

// Returns the texts of a flag's values, each once.
template <class T>
std::vector<std::string> axis_texts(std::string_view axis, std::string_view text) {
  std::vector<std::string> texts;
  for (const auto& value : AxisText<T>::parse_list(axis, text)) {
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
  using T = ValueOf<Field>;
  const auto is = [field](const std::any& other) {
    const Field* const same = std::any_cast<Field>(&other);
    return same && *same == field;
  };
  add_axis<T>(name, field, is, detail::setter_of<Case, T>(field), usual, allowed);
  return *this;
}

template <class Case>
Sweep<Case>& Sweep<Case>::axis(
    const AxisInfo& info, const std::function<std::vector<std::string>(std::string_view)>& expand,
    std::function<void(Case&, const std::string&)> set) {
  add_axis(info, expand, [set](const std::string& text) -> Setter {
    return [set, text](void* the_case) { set(*static_cast<Case*>(the_case), text); };
  });
  return *this;
}

}  // namespace harness
