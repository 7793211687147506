// The words that a shell offers for an unfinished command line.

#include <fmt/format.h>

#include "suite/options/options.h"

namespace suite {
namespace {

// Returns the choices; an empty list for an unknown unit, which has no axes.
std::vector<std::string> values(const Options::Choices& choices) {
  try {
    return choices ? choices() : std::vector<std::string>();
  } catch (const machine::UsageError&) {
    return {};
  }
}

// Prints the choices that begin with `partial`, each after `stem`.
void offer(const Options::Choices& choices, std::string_view stem, std::string_view partial) {
  for (const std::string& choice : values(choices))
    if (choice.starts_with(partial)) fmt::print("{}{}\n", stem, choice);
}

// Completes a value. If the value is a list, completes its last element.
void offer_value(const Options::Choices& choices, std::string_view stem, std::string_view value) {
  const std::size_t begin = value.rfind(',') + 1;
  offer(choices, fmt::format("{}{}", stem, value.substr(0, begin)), value.substr(begin));
}

}  // namespace

void Options::choices(Choices choices) { options_.back().choices = std::move(choices); }

void Options::offer_names(std::string_view partial) const {
  for (const Option& option : options_) {
    // An option that the help does not list belongs to one of the named units if it has values
    // there.
    if (option.group.empty() && values(option.choices).empty()) continue;
    for (const std::string& name : option.names)
      if (name.starts_with(partial)) fmt::print("{}\t{}\n", name, option.about);
  }
  if (std::string_view("--help").starts_with(partial)) fmt::print("--help\tthis command\n");
}

bool Options::complete(std::vector<std::string> words) {
  const std::string partial = words.empty() ? "" : words.back();
  if (!words.empty()) words.pop_back();
  const Option* pending = words.empty() ? nullptr : find(words.back());
  if (pending && pending->value.empty()) pending = nullptr;
  if (pending) words.pop_back();
  for (std::size_t at = 0; at < words.size(); ++at) try {
      if (!take_word(words, at)) break;
    } catch (const machine::UsageError&) {  // the line is incomplete
    }
  if (behind_first_ && !behind_first_->empty()) {
    behind_first_->insert(behind_first_->begin() + 1, std::string(complete_word));
    if (pending) behind_first_->push_back(pending->names.front());
    behind_first_->push_back(partial);
    return true;
  }
  const std::size_t equals = partial.starts_with("--") ? partial.find('=') : std::string::npos;
  if (pending) {
    offer_value(pending->choices, "", partial);
  } else if (equals != std::string::npos) {
    const Option* named = find(partial.substr(0, equals));
    const std::string_view value = std::string_view(partial).substr(equals + 1);
    if (named) offer_value(named->choices, partial.substr(0, equals + 1), value);
  } else if (partial.starts_with('-')) {
    offer_names(partial);
  } else {
    offer(argument_choices_, "", partial);
  }
  return false;
}

}  // namespace suite
