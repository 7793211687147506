#include "suite/configuration/assignments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <stdexcept>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite::configuration {
namespace {

std::string lower(std::string_view word) {
  std::string result(word);
  for (char& letter : result) letter = static_cast<char>(std::tolower(letter));
  return result;
}

void check_number(Kind kind, double said, const Origin& origin, const Limits& limits) {
  if (!(said >= limits.least && said <= limits.most))
    reject("{} is {}; expected {} from {} to {}", origin.text(), said, name(kind), limits.least,
           limits.most);
  if ((kind == Kind::whole || kind == Kind::list) && said != std::floor(said))
    reject("{} is {}; expected {}", origin.text(), said, name(kind));
}

std::string chosen(const std::string& said, const Origin& origin, const Limits& limits) {
  if (limits.choices.empty()) return said;
  for (const auto& [from, to] : limits.synonyms)
    if (lower(from) == lower(said)) return std::string(to);
  for (const std::string& choice : limits.choices)
    if (lower(choice) == lower(said)) return choice;
  for (const auto& [name, why] : limits.refused)
    if (lower(name) == lower(said))
      reject("{} is {}, which is not supported: {}; known: {}", origin.text(), in_quotes(said), why,
             fmt::join(limits.choices, ", "));
  const std::string near = machine::nearest(said, limits.choices);
  if (near.empty())
    reject("{} is {}; known: {}", origin.text(), in_quotes(said), fmt::join(limits.choices, ", "));
  reject("{} is {}; did you mean '{}'?", origin.text(), in_quotes(said), near);
}

bool fits(Kind kind, const Value& value) {
  if (kind == Kind::truth) return std::holds_alternative<bool>(value);
  if (kind == Kind::word) return std::holds_alternative<std::string>(value);
  if (kind == Kind::list) return std::holds_alternative<std::vector<double>>(value);
  if (kind != Kind::pair) return std::holds_alternative<double>(value);
  const auto* const list = std::get_if<std::vector<double>>(&value);
  return list && list->size() == 2;
}

}  // namespace

std::string Origin::text() const {
  return source.empty() ? key : key.empty() ? source : fmt::format("{}: {}", source, key);
}

void Assignments::remember(const Field& field, const std::string& before, const Origin& origin) {
  const std::string now = field.text();
  const auto [found, first] = said_.try_emplace(field.address(), Said{origin, now});
  if (first || now == before) return;
  reject("{} is {}, but {} is {}; they mean the same thing", found->second.origin.text(), before,
         origin.text(), now);
}

void Assignments::set(const Field& field, const Value& value, const Origin& origin,
                      const Limits& limits) {
  if (std::holds_alternative<std::monostate>(value)) return;
  const Kind kind = field.kind();
  if (!fits(kind, value))
    reject("{} is {}; expected {}", origin.text(), suite::text(value), name(kind));
  if (kind == Kind::pair) {
    // Sets each number separately, because other sources have a key for only one of them.
    for (std::size_t i = 0; i < 2; ++i)
      set(field.of_pair(i), std::get<std::vector<double>>(value)[i], origin, limits);
    return;
  }
  const std::string before = field.text();
  if (const double* number = std::get_if<double>(&value))
    check_number(kind, *number, origin, limits);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value))
    for (const double number : *numbers) check_number(kind, number, origin, limits);
  if (const std::string* word = std::get_if<std::string>(&value)) {
    try {
      field.set(chosen(*word, origin, limits));
    } catch (const std::invalid_argument& error) {
      // The key has no choices, so the enumeration checks its names.
      reject("{}: {}", origin.text(), error.what());
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
