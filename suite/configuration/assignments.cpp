#include "suite/configuration/assignments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string text_of(const Value& value) {
  return std::visit(Overloaded{[](std::monostate) -> std::string { return "null"; },
                               [](bool on) -> std::string { return on ? "true" : "false"; },
                               [](double number) { return fmt::format("{}", number); },
                               [](const std::string& word) { return in_quotes(word); },
                               [](const std::vector<double>& list) {
                                 return fmt::format("a list of {} numbers", list.size());
                               }},
                    value);
}

[[noreturn]] void refuse(const Origin& origin, const std::string& why) {
  throw harness::UsageError(fmt::format("{} {}", origin.text(), why));
}

std::string lower(std::string_view word) {
  std::string result(word);
  for (char& letter : result) letter = static_cast<char>(std::tolower(letter));
  return result;
}

double number(const Field& field, const Value& value, const Origin& origin, const Limits& limits) {
  const double* said = std::get_if<double>(&value);
  if (!said) refuse(origin, fmt::format("is {}; expected {}", text_of(value), type_name(field)));
  if (!(*said >= limits.least && *said <= limits.most))
    refuse(origin, fmt::format("is {}; expected {} from {} to {}", *said, type_name(field),
                               limits.least, limits.most));
  return *said;
}

std::int64_t whole(const Field& field, const Value& value, const Origin& origin,
                   const Limits& limits) {
  const double said = number(field, value, origin, limits);
  if (said != std::floor(said))
    refuse(origin, fmt::format("is {}; expected {}", said, type_name(field)));
  constexpr double end = 0x1p63;
  return said >= end ? std::numeric_limits<std::int64_t>::max() : static_cast<std::int64_t>(said);
}

bool truth(const Field& field, const Value& value, const Origin& origin) {
  const bool* said = std::get_if<bool>(&value);
  if (!said) refuse(origin, fmt::format("is {}; expected {}", text_of(value), type_name(field)));
  return *said;
}

std::string word(const Field& field, const Value& value, const Origin& origin,
                 const Limits& limits) {
  const std::string* said = std::get_if<std::string>(&value);
  if (!said) refuse(origin, fmt::format("is {}; expected {}", text_of(value), type_name(field)));
  if (limits.choices.empty()) return *said;
  for (const std::string_view choice : limits.choices)
    if (lower(choice) == lower(*said)) return std::string(choice);
  for (const auto& [from, to] : limits.synonyms)
    if (lower(from) == lower(*said)) return std::string(to);
  const std::vector<std::string> names(limits.choices.begin(), limits.choices.end());
  const std::string near = machine::nearest(*said, names);
  refuse(origin, near.empty()
                     ? fmt::format("is {}; known: {}", in_quotes(*said), fmt::join(names, ", "))
                     : fmt::format("is {}; did you mean '{}'?", in_quotes(*said), near));
}

}  // namespace

const void* address(const Field& field) {
  return std::visit([](auto* at) { return static_cast<const void*>(at); }, field);
}

std::string text(const Field& field) {
  return std::visit(
      Overloaded{[](const bool* on) -> std::string { return *on ? "true" : "false"; },
                 [](const std::int64_t* number) { return fmt::format("{}", *number); },
                 [](const double* number) { return fmt::format("{}", *number); },
                 [](const std::string* word) { return word->empty() ? "none" : *word; },
                 [](const std::optional<bool>* on) -> std::string {
                   return on->has_value() ? (**on ? "true" : "false") : "none";
                 },
                 [](const std::optional<std::int64_t>* number) {
                   return number->has_value() ? fmt::format("{}", **number) : "none";
                 },
                 [](const std::array<double, 2>* pair) {
                   return fmt::format("[{}, {}]", pair->front(), pair->back());
                 }},
      field);
}

std::string_view type_name(const Field& field) {
  constexpr std::string_view names[] = {
      "true or false",  "a whole number",       "a number", "a text", "true or false",
      "a whole number", "a list of two numbers"};
  return names[field.index()];
}

std::string Origin::text() const {
  return source.empty() ? key : key.empty() ? source : fmt::format("{}: {}", source, key);
}

void Assignments::remember(const Field& field, const std::string& before, const Origin& origin) {
  const std::string now = text(field);
  const auto [found, first] = said_.try_emplace(address(field), Said{origin, now});
  if (first || now == before) return;
  throw harness::UsageError(fmt::format("{} is {}, but {} is {}; they mean the same thing",
                                        found->second.origin.text(), before, origin.text(), now));
}

void Assignments::set(const Field& field, const Value& value, const Origin& origin,
                      const Limits& limits) {
  if (std::holds_alternative<std::monostate>(value)) return;
  const std::string before = text(field);
  std::visit(
      Overloaded{
          [&](bool* into) { *into = truth(field, value, origin); },
          [&](std::int64_t* into) { *into = whole(field, value, origin, limits); },
          [&](double* into) { *into = number(field, value, origin, limits); },
          [&](std::string* into) { *into = word(field, value, origin, limits); },
          [&](std::optional<bool>* into) { *into = truth(field, value, origin); },
          [&](std::optional<std::int64_t>* into) { *into = whole(field, value, origin, limits); },
          [&](std::array<double, 2>* into) {
            const auto* list = std::get_if<std::vector<double>>(&value);
            if (!list || list->size() != 2)
              refuse(origin, fmt::format("is {}; expected {}", text_of(value), type_name(field)));
            for (std::size_t i = 0; i < 2; ++i) set(&(*into)[i], (*list)[i], origin, limits);
          }},
      field);
  if (!std::holds_alternative<std::array<double, 2>*>(field)) remember(field, before, origin);
}

void Assignments::note(const Field& field, const Origin& origin) {
  remember(field, text(field), origin);
}

const Origin* Assignments::origin(const void* field) const {
  const auto found = said_.find(field);
  return found == said_.end() ? nullptr : &found->second.origin;
}

}  // namespace suite::configuration
