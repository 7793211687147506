#include "suite/options/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "machine/base/names.h"

namespace suite {
namespace {

constexpr std::size_t most_columns = 100, widest_name = 30;

bool is_option(std::string_view word) { return word.size() > 1 && word[0] == '-'; }
bool is_negative_number(const std::string& word) { return number_of<double>(word).has_value(); }
// Arguments of another program in quotes: no option's name has a space.
bool is_quoted(std::string_view word) {
  return word.substr(0, word.find('=')).find(' ') != std::string_view::npos;
}

// Wraps a text into lines of at most `columns`. Keeps its line ends.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines{""};
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > columns)
      lines.emplace_back(word);
    else
      lines.back() += fmt::format("{}{}", lines.back().empty() ? "" : " ", word);
    if (end < text.size() && text[end] == '\n') lines.emplace_back();
    begin = end + 1;
  }
  return lines;
}

}  // namespace

int complain(int code, std::string_view text) {
  fmt::print(stderr, "shardmark: {}\n", text);
  return code;
}

std::int64_t whole_number(std::string_view key, const std::string& text, std::int64_t least,
                          std::int64_t most) {
  const auto value = number_of<std::int64_t>(text);
  if (!value || *value < least || *value > most)
    reject("{} is '{}'; expected a whole number from {} to {}", key, text, least, most);
  return *value;
}

double real_number(std::string_view key, const std::string& text, double least, double most) {
  const auto value = number_of<double>(text);
  if (!value || !(*value >= least && *value <= most))
    reject("{} is '{}'; expected a number from {} to {}", key, text, least, most);
  return *value;
}

double positive_number(std::string_view key, const std::string& text) {
  const auto value = number_of<double>(text);
  if (!value || !(*value > 0) || std::isinf(*value))
    reject("{} is '{}'; expected a number above 0", key, text);
  return *value;
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Options::Options(std::string command, std::string arguments, std::string about)
    : command_(std::move(command)),
      arguments_text_(std::move(arguments)),
      about_(std::move(about)) {}

void Options::footer(std::string text) {
  footer_ = [text = std::move(text)] { return text; };
}

void Options::read(const std::string& names, std::string value, Read read, std::string about,
                   Times times) {
  options_.push_back({split_list(names),
                      std::move(value),
                      std::move(about),
                      group_,
                      std::move(read),
                      {},
                      times == Times::once ? times_ : times});
}

void Options::text(const std::string& names, std::string value, std::string& into,
                   std::string about) {
  read(
      names, std::move(value), [&into](const std::string& text) { into = text; }, std::move(about));
}

void Options::texts(const std::string& names, std::string value, std::vector<std::string>& into,
                    std::string about, bool list) {
  read(
      names, std::move(value),
      [&into, list](const std::string& text) {
        for (std::string& one : list ? split_list(text) : std::vector{text})
          into.push_back(std::move(one));
      },
      std::move(about), Times::each);
}

void Options::flag(const std::string& names, bool& into, std::string about) {
  read(
      names, "", [&into](const std::string&) { into = true; }, std::move(about), Times::last);
}

void Options::arguments(std::string value, std::vector<std::string>& into, std::string about,
                        std::size_t least, std::size_t most) {
  argument_value_ = std::move(value);
  argument_about_ = std::move(about);
  arguments_ = &into;
  least_arguments_ = least;
  most_arguments_ = most;
}

void Options::takes_following(const std::string& name, std::string value,
                              std::vector<std::string>& into, std::string about) {
  texts(name, std::move(value), into, std::move(about), false);
  options_.back().takes_following = true;
}

void Options::pass(std::string prefix, std::vector<std::string>& into) {
  passed_prefix_ = std::move(prefix);
  passed_ = &into;
}

bool Options::pass(const std::string& word) {
  if (!passed_ || !word.starts_with(passed_prefix_)) return false;
  passed_->push_back(word);
  return true;
}

Options::Option* Options::find(std::string_view name) {
  for (Option& option : options_)
    if (std::ranges::find(option.names, name) != option.names.end()) return &option;
  return nullptr;
}

void Options::take(Option& option, std::string_view name, const std::string& value) {
  if (++option.given > 1 && option.times == Times::once) reject("'{}' is given twice", name);
  option.read(value);
}

void Options::take_option(const std::vector<std::string>& words, std::size_t& at) {
  const std::string& word = words[at];
  const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
  std::string name = word.substr(0, equals);
  std::optional<std::string> value;
  if (equals != std::string::npos) value = word.substr(equals + 1);
  if (!word.starts_with("--") && word.size() > 2) {
    name = word.substr(0, 2);
    value = word.substr(2);
  }
  Option* option = find(name);
  if (!option && (name == "-h" || name == "--help")) {
    wants_help_ = true;
    wants_roff_ = word == roff_help;
    return;
  }
  if (!option) {
    if (pass(word)) return;
    std::vector<std::string> known = names();
    const bool letter = !name.starts_with("--");
    std::erase_if(known, [&](const std::string& one) { return one.starts_with("--") == letter; });
    // Do not suggest a letter: each letter is near every other letter.
    if (letter && !known.empty())
      reject("unknown flag '{}'; known: {}", name, fmt::join(known, " "));
    if (known.size() > 20 && machine::nearest(name, known).empty())
      reject("unknown flag '{}'; --help lists all {} flags", name, known.size());
    throw machine::UsageError(machine::unknown("flag", name, known));
  }
  if (option->value.empty()) {
    if (value) reject("{} takes no value (got '{}')", name, *value);
    return take(*option, name, "");
  }
  const auto follows = [&] {
    if (at + 1 == words.size()) return false;
    const std::string& next = words[at + 1];
    return !is_option(next) || is_negative_number(next) || is_quoted(next);
  };
  if (!value) {
    if (!follows()) {
      const std::string next = at + 1 < words.size() ? words[at + 1] : "";
      const bool may_be_meant = !next.empty() && !find(next.substr(0, next.find('=')));
      reject("{} requires a value: {}{}", name, option->value,
             may_be_meant ? fmt::format("; if it is '{1}', write {0}={1}", name, next) : "");
    }
    value = words[++at];
  }
  take(*option, name, *value);
  while (option->takes_following && follows()) take(*option, name, words[++at]);
}

bool Options::take_word(const std::vector<std::string>& words, std::size_t& at) {
  if (is_option(words[at])) {
    take_option(words, at);
  } else if (behind_first_) {
    behind_first_->assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
    return false;
  } else if (!pass(words[at])) {
    if (!arguments_ || arguments_->size() == most_arguments_)
      reject("unexpected argument '{}'", words[at]);
    arguments_->push_back(words[at]);
  }
  return true;
}

bool Options::parse(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == complete_word)
    return complete({words.begin() + 1, words.end()});
  for (std::size_t at = 0; at < words.size(); ++at)
    if (!take_word(words, at)) break;
  if (wants_help_) {
    fmt::print("{}", wants_roff_ ? manual() : help());
    return false;
  }
  if (arguments_ && arguments_->size() < least_arguments_)
    reject("{} requires {}: {}", command_, argument_value_, argument_about_);
  return true;
}

std::vector<std::string> Options::names() const {
  std::vector<std::string> all{"-h", "--help"};
  for (const Option& option : options_)
    all.insert(all.end(), option.names.begin(), option.names.end());
  return all;
}

std::string two_columns(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::size_t width = 0;
  for (const auto& [name, text] : rows)
    if (name.size() <= widest_name) width = std::max(width, name.size());
  std::string all;
  for (const auto& [name, text] : rows) {
    std::string left = name;
    for (const std::string& line : wrapped(text, most_columns - width - 4)) {
      if (left.size() > width) {
        all += fmt::format("  {}\n", left);
        left.clear();
      }
      all += line.empty() ? fmt::format("  {}\n", left)
                          : fmt::format("  {:<{}}  {}\n", left, width, line);
      left.clear();
    }
  }
  return all;
}

std::string Options::usage() const {
  return fmt::format("{} [OPTIONS]{}{}", command_, arguments_text_.empty() ? "" : " ",
                     arguments_text_);
}

std::vector<std::string> Options::groups() const {
  std::vector<std::string> groups;
  for (const Option& option : options_)
    if (!option.group.empty() && std::ranges::find(groups, option.group) == groups.end())
      groups.push_back(option.group);
  return groups;
}

std::string Options::help() const {
  std::string text = fmt::format("Usage: shardmark {}\n", usage());
  if (!about_.empty())
    text += fmt::format("\n{}\n", fmt::join(wrapped(about_, most_columns), "\n"));
  for (const std::string& group : groups()) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (const Option& option : options_)
      if (option.group == group)
        rows.emplace_back(fmt::format("{}{}{}", fmt::join(option.names, ", "),
                                      option.value.empty() ? "" : " ", option.value),
                          option.about);
    text += fmt::format("\n{}:\n{}", group, two_columns(rows));
  }
  if (footer_) text += fmt::format("\n{}\n", footer_());
  return text;
}

}  // namespace suite
