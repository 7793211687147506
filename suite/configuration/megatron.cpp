// Megatron-LM's arguments, and the values of axes.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "harness/unit/sweep.h"
#include "machine/base/names.h"
#include "suite/configuration/readers.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

using harness::UsageError;

class ArgumentReader {
 public:
  ArgumentReader(const std::string& source, const std::vector<std::string>& words,
                 TrainingConfig& config, Assignments& said, Notes& notes)
      : source_(source), words_(words), config_(config), said_(said), notes_(notes) {}

  void read() {
    while (next_ < words_.size()) argument();
  }

 private:
  bool has_value() const { return inline_value_ || (next_ < words_.size() && !is_name()); }
  bool is_name() const { return words_[next_].starts_with("--"); }
  std::string take_value() {
    if (inline_value_) return *std::exchange(inline_value_, {});
    return words_[next_++];
  }

  void argument() {
    std::string name = words_[next_++];
    if (!name.starts_with("--"))
      throw UsageError(
          fmt::format("{}: {} is no argument and no value of one", source_, in_quotes(name)));
    inline_value_.reset();
    if (const std::size_t sign = name.find('='); sign != std::string::npos) {
      inline_value_ = name.substr(sign + 1);
      name.resize(sign);
    }
    const auto word = std::ranges::find(words(), name, &Word::from);
    const bool renamed = word != words().end();
    const Key* const key = renamed ? find_key(word->to) : find_key(&Key::megatron, name);
    if (!key) return unknown(name);
    if (renamed && word->deprecated)
      notes_.warnings.push_back(
          fmt::format("{}: {} is an older name of {}", source_, word->from, word->to));
    const Origin origin{source_, name};
    if (renamed && !word->values.empty())
      stands_for(*key, *word, origin);
    else if (key->field)
      set(*key, origin);
    else
      without_field(*key, origin);
  }

  void unknown(const std::string& name) {
    notes_.refuse(fmt::format("{}: {}", source_,
                              machine::unknown("argument", printable(name), near_names(name))));
    while (has_value()) take_value();
  }

  static std::vector<std::string> near_names(const std::string& name) {
    std::vector<std::string> names = megatron_names();
    if (!machine::nearest(name, names).empty()) return names;
    return {"Megatron-LM's names for the model, the degrees, batches and the optimizer"};
  }

  void refuse_value(const Origin& origin) const {
    if (inline_value_ || (next_ < words_.size() && !is_name()))
      throw UsageError(fmt::format("{} is a switch; {} stands after it", origin.text(),
                                   in_quotes(inline_value_ ? *inline_value_ : words_[next_])));
  }

  std::string needed_value(Kind kind, const Origin& origin) {
    if (!has_value())
      throw UsageError(fmt::format("{} has no value; expected {}", origin.text(), name(kind)));
    return take_value();
  }

  // A switch, or a choice by other names.
  void stands_for(const Key& key, const Word& word, const Origin& origin) {
    std::string given = "true";
    if (word.values.front().first == "true") {
      refuse_value(origin);
    } else {
      Limits limits;
      for (const auto& [from, to] : word.values) limits.choices.push_back(from);
      std::string chosen;
      Assignments().set(Field(chosen), needed_value(Kind::word, origin), origin, limits);
      given = chosen;
    }
    const std::string_view value = std::ranges::find(word.values, given, [](const auto& pair) {
                                     return std::string(pair.first);
                                   })->second;
    if (!key.field) {
      if (!key.takes(std::string(value))) notes_.without_field(key, std::string(value), origin);
      return;
    }
    const Field field = key.field(config_);
    said_.set(field, value_of(field.kind(), std::string(value)), origin);
  }

  void set(const Key& key, const Origin& origin) {
    const Field field = key.field(config_);
    if (field.kind() == Kind::truth) {
      refuse_value(origin);
      return said_.set(field, true, origin);
    }
    const std::string text = needed_value(field.kind(), origin);
    const Value value = value_of(field.kind(), text);
    // A text that is no number: set says what was expected.
    said_.set(field, std::holds_alternative<std::monostate>(value) ? Value(text) : value, origin,
              key.limits);
  }

  void without_field(const Key& key, const Origin& origin) {
    std::vector<std::string> values;
    while (has_value()) values.push_back(take_value());
    const Value value = values.size() == 1 ? value_of(Kind::number, values[0]) : Value();
    const bool asks = values.empty() ? !key.takes(true)
                                     : values.size() > 1 || !(std::holds_alternative<double>(value)
                                                                  ? key.takes(value)
                                                                  : key.takes(values[0]));
    if (asks) notes_.without_field(key, values.empty() ? "true" : values[0], origin);
  }

  const std::string& source_;
  const std::vector<std::string>& words_;
  TrainingConfig& config_;
  Assignments& said_;
  Notes& notes_;
  std::size_t next_ = 0;
  std::optional<std::string> inline_value_;
};

}  // namespace

void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   TrainingConfig& config, Assignments& said, Notes& notes) {
  ArgumentReader(source, words, config, said, notes).read();
}

std::vector<std::string> words_of(const std::string& file, std::string_view text) {
  constexpr std::size_t most = 100'000;
  std::vector<std::string> words;
  std::string word;
  bool open = false, comment = false;
  char quote = 0;
  const auto end_word = [&] {
    if (open) words.push_back(std::exchange(word, {}));
    open = false;
    if (words.size() > most) throw FileError(fmt::format("{} has more than {} words", file, most));
  };
  for (const char letter : text) {
    if (comment) {
      comment = letter != '\n';
    } else if (quote) {
      if (letter == quote)
        quote = 0;
      else
        word += letter;
    } else if (letter == '\'' || letter == '"') {
      quote = letter;
      open = true;
    } else if (letter == '#' && !open) {
      comment = true;
    } else if (letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r' ||
               letter == '\\') {
      end_word();
    } else {
      word += letter;
      open = true;
    }
  }
  if (quote) throw FileError(fmt::format("{}: a quote {} is not closed", file, quote));
  end_word();
  return words;
}

std::vector<std::string> read_words(const std::string& path) {
  return words_of(path, MappedFile(path).text());
}

void read_axis(const std::string& axis, const std::string& text, TrainingConfig& config,
               Assignments& said) {
  const Key* const key = find_key(&Key::axis, axis);
  if (!key) throw UsageError(fmt::format("no axis '{}'", axis));
  if (!key->unset.empty() && text == key->unset) return;
  const Field field = key->field(config);
  const Value value = value_of(field.kind(), text);
  if (!key->unset.empty() && field.kind() == Kind::whole && !std::holds_alternative<double>(value))
    throw UsageError(
        fmt::format("--{} is '{}'; expected a whole number or '{}'", axis, text, key->unset));
  said.set(field, std::holds_alternative<std::monostate>(value) ? Value(text) : value,
           {"command line", fmt::format("--{}", axis)}, key->limits);
}

std::string axis_text(const Key& key, TrainingConfig& config) {
  const Field field = key.field(config);
  const std::string text = field.text();
  if (field.kind() == Kind::truth) return text == "true" ? "on" : "off";
  return text == "none" && !key.unset.empty() ? std::string(key.unset) : text;
}

}  // namespace suite::configuration
