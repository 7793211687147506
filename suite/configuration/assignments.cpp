#include "suite/configuration/assignments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

#include "harness/unit/sweep.h"
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

[[noreturn]] void refuse(const Origin& origin, const std::string& why) {
  throw harness::UsageError(fmt::format("{} {}", origin.text(), why));
}

std::string lower(std::string_view word) {
  std::string result(word);
  for (char& letter : result) letter = static_cast<char>(std::tolower(letter));
  return result;
}

void check_number(Kind kind, double said, const Origin& origin, const Limits& limits) {
  if (!(said >= limits.least && said <= limits.most))
    refuse(origin, fmt::format("is {}; expected {} from {} to {}", said, name(kind), limits.least,
                               limits.most));
  if (kind == Kind::whole && said != std::floor(said))
    refuse(origin, fmt::format("is {}; expected {}", said, name(kind)));
}

std::string chosen(const std::string& said, const Origin& origin, const Limits& limits) {
  if (limits.choices.empty()) return said;
  for (const auto& [from, to] : limits.synonyms)
    if (lower(from) == lower(said)) return std::string(to);
  for (const std::string_view choice : limits.choices)
    if (lower(choice) == lower(said)) return std::string(choice);
  const std::vector<std::string> names(limits.choices.begin(), limits.choices.end());
  const std::string near = machine::nearest(said, names);
  refuse(origin, near.empty()
                     ? fmt::format("is {}; known: {}", in_quotes(said), fmt::join(names, ", "))
                     : fmt::format("is {}; did you mean '{}'?", in_quotes(said), near));
}

bool fits(Kind kind, const Value& value) {
  const auto* list = std::get_if<std::vector<double>>(&value);
  switch (kind) {
    case Kind::truth:
      return std::holds_alternative<bool>(value);
    case Kind::whole:
    case Kind::number:
      return std::holds_alternative<double>(value);
    case Kind::word:
      return std::holds_alternative<std::string>(value);
    case Kind::pair:
      return list && list->size() == 2;
  }
  return false;
}

}  // namespace

std::string text(const Value& value) {
  return std::visit(Overloaded{[](std::monostate) -> std::string { return "null"; },
                               [](bool on) -> std::string { return on ? "true" : "false"; },
                               [](double number) { return fmt::format("{}", number); },
                               [](const std::string& word) { return in_quotes(word); },
                               [](const std::vector<double>& list) {
                                 return fmt::format("a list of {} numbers", list.size());
                               }},
                    value);
}

std::string Origin::text() const {
  return source.empty() ? key : key.empty() ? source : fmt::format("{}: {}", source, key);
}

void Assignments::remember(const Field& field, const std::string& before, const Origin& origin) {
  const std::string now = field.text();
  const auto [found, first] = said_.try_emplace(field.address(), Said{origin, now});
  if (first || now == before) return;
  throw harness::UsageError(fmt::format("{} is {}, but {} is {}; they mean the same thing",
                                        found->second.origin.text(), before, origin.text(), now));
}

void Assignments::set(const Field& field, const Value& value, const Origin& origin,
                      const Limits& limits) {
  if (std::holds_alternative<std::monostate>(value)) return;
  const Kind kind = field.kind();
  if (!fits(kind, value))
    refuse(origin, fmt::format("is {}; expected {}", text(value), name(kind)));
  if (kind == Kind::pair) {
    // Each by itself: other sources have a word for one of them.
    for (std::size_t i = 0; i < 2; ++i)
      set(field.of_pair(i), std::get<std::vector<double>>(value)[i], origin, limits);
    return;
  }
  const std::string before = field.text();
  if (const double* number = std::get_if<double>(&value))
    check_number(kind, *number, origin, limits);
  if (const std::string* word = std::get_if<std::string>(&value)) {
    try {
      field.set(chosen(*word, origin, limits));
    } catch (const std::invalid_argument& error) {  // an enumeration without choices here
      throw harness::UsageError(fmt::format("{}: {}", origin.text(), error.what()));
    }
  } else {
    field.set(value);
  }
  remember(field, before, origin);
}

void Assignments::note(const Field& field, const Origin& origin) {
  remember(field, field.text(), origin);
}

const Origin* Assignments::origin(const void* field) const {
  const auto found = said_.find(field);
  return found == said_.end() ? nullptr : &found->second.origin;
}

}  // namespace suite::configuration
