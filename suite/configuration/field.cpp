#include "suite/configuration/field.h"

#include <fmt/format.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <type_traits>

#include "suite/options/options.h"

namespace suite::configuration {
namespace {

using Pair = std::array<double, 2>;
using List = std::vector<int>;

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

template <class T>
constexpr Kind kind_of(const T*) {
  if constexpr (is_optional<T>)
    return kind_of(static_cast<const typename T::value_type*>(nullptr));
  else if constexpr (std::is_same_v<T, bool>)
    return Kind::truth;
  else if constexpr (std::is_integral_v<T>)
    return Kind::whole;
  else if constexpr (std::is_floating_point_v<T>)
    return Kind::number;
  else if constexpr (std::is_same_v<T, Pair>)
    return Kind::pair;
  else if constexpr (std::is_same_v<T, List>)
    return Kind::list;
  else
    return Kind::word;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (is_optional<T>)
    return value ? text_of(*value) : "none";
  else if constexpr (std::is_same_v<T, std::string>)
    return value.empty() ? "none" : value;
  else if constexpr (std::is_same_v<T, Pair>)
    return fmt::format("[{}, {}]", value[0], value[1]);
  else if constexpr (std::is_same_v<T, List>)
    return fmt::format("[{}]", fmt::join(value, ", "));
  else
    return fmt::format("{}", value);
}

template <class T>
T number_as(double number) {
  constexpr auto most = std::numeric_limits<T>::max();
  return number >= static_cast<double>(most) ? most : static_cast<T>(number);
}

template <class T>
void assign(T& into, const Value& value) {
  if constexpr (is_optional<T>)
    assign(into.emplace(), value);
  else if constexpr (std::is_same_v<T, bool>)
    into = std::get<bool>(value);
  else if constexpr (std::is_floating_point_v<T>)
    into = std::get<double>(value);
  else if constexpr (std::is_integral_v<T>)
    into = number_as<T>(std::get<double>(value));
  else if constexpr (std::is_same_v<T, std::string>)
    into = std::get<std::string>(value);
  else if constexpr (std::is_same_v<T, Pair>)
    into = {std::get<std::vector<double>>(value).at(0), std::get<std::vector<double>>(value).at(1)};
  else if constexpr (std::is_same_v<T, List>) {
    into.clear();
    for (const double number : std::get<std::vector<double>>(value))
      into.push_back(number_as<int>(number));
  }
}

// Calls `pointer` with a pointer to the member, or `enumeration`.
template <class... Ats, class Pointer, class Enumeration>
auto at_member(const std::variant<Ats...>& at, const Pointer& pointer,
               const Enumeration& enumeration) {
  return std::visit(
      [&](const auto& one) {
        if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(one)>>)
          return pointer(one);
        else
          return enumeration(one);
      },
      at);
}

}  // namespace

Kind Field::kind() const {
  return at_member(
      at_, [](const auto* at) { return kind_of(at); }, [](const auto&) { return Kind::word; });
}

const void* Field::address() const {
  return at_member(
      at_, [](const auto* at) -> const void* { return at; },
      [](const auto& member) -> const void* { return member.at; });
}

void Field::set(const Value& value) const {
  at_member(
      at_, [&](auto* at) { assign(*at, value); },
      [&](const auto& member) { member.names->set(member.at, std::get<std::string>(value)); });
}

void Field::copy(const Field& other) const {
  at_member(
      at_, [&](auto* at) { *at = *std::get<decltype(at)>(other.at_); },
      [&](const auto& member) { member.names->copy(member.at, other.address()); });
}

Field Field::of_pair(std::size_t index) const { return Field((*std::get<Pair*>(at_))[index]); }

std::string Field::text() const {
  return at_member(
      at_, [](const auto* at) { return text_of(*at); },
      [](const auto& member) { return member.names->text(member.at); });
}

std::string_view name(Kind kind) {
  constexpr std::string_view names[] = {
      "true or false", "a whole number",        "a number",
      "a text",        "a list of two numbers", "a list of whole numbers"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

Value list_of(std::string text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::ranges::replace(text, '+', ',');
  std::vector<double> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words >> std::ws, word, ',');) {
    const auto number = number_of<int>(word);
    if (!number) return {};
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

Value value_of(Kind kind, const std::string& text) {
  if (kind == Kind::list) return list_of(text);
  if (kind == Kind::word) return text;
  if (kind == Kind::truth) {
    if (text == "1" || text == "on" || text == "true") return true;
    if (text == "0" || text == "off" || text == "false") return false;
    return {};
  }
  const auto number = number_of<double>(text);
  return number && std::isfinite(*number) ? Value(*number) : Value();
}

}  // namespace suite::configuration
