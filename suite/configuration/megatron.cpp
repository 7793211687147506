// Megatron-LM's arguments, and the values of axes.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "machine/base/names.h"
#include "suite/configuration/readers.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite::configuration {
namespace {

// Returns the text as a value of this kind, or unchanged: Assignments::set rejects another kind.
Value value_or_text(Kind kind, const std::string& text) {
  const Value value = value_of(kind, text);
  return std::holds_alternative<std::monostate>(value) ? Value(text) : value;
}

struct ArgumentReader {
  const std::string& source;
  const std::vector<std::string>& words;
  TrainingConfig& config;
  Assignments& said;
  Notes& notes;
  std::size_t next = 0;
  std::optional<std::string> inline_value{};

  bool has_value() const {
    return inline_value || (next < words.size() && !words[next].starts_with("--"));
  }
  std::string take_value() {
    if (inline_value) return *std::exchange(inline_value, {});
    return words[next++];
  }

  void argument() {
    std::string name = words[next++];
    if (!name.starts_with("--"))
      reject("{}: {} is not an argument or the value of an argument", source, in_quotes(name));
    inline_value.reset();
    if (const std::size_t sign = name.find('='); sign != std::string::npos) {
      inline_value = name.substr(sign + 1);
      name.resize(sign);
    }
    const auto word = std::ranges::find(configuration::words(), name, &Word::from);
    const bool renamed = word != configuration::words().end();
    const Key* const key = renamed ? find_key(word->to) : find_key(&Key::megatron, name);
    if (!key) return unknown(name);
    if (renamed && word->deprecated)
      notes.warnings.push_back(
          fmt::format("{}: {} is an older name of {}", source, word->from, word->to));
    const Origin origin{source, name};
    if (renamed && !word->values.empty())
      stands_for(*key, *word, origin);
    else if (key->field)
      set(*key, origin);
    else
      without_field(*key, origin);
  }

  void unknown(const std::string& name) {
    notes.refuse(fmt::format("{}: {}", source,
                             machine::unknown("argument", printable(name), near_names(name))));
    while (has_value()) take_value();
  }

  static std::vector<std::string> near_names(const std::string& name) {
    std::vector<std::string> names = megatron_names();
    if (!machine::nearest(name, names).empty()) return names;
    return {"Megatron-LM's names for the model, the degrees, batches and the optimizer"};
  }

  void refuse_value(const Origin& origin) {
    if (has_value())
      reject("{} is a switch (got {} after it)", origin.text(), in_quotes(take_value()));
  }

  std::string needed_value(Kind kind, const Origin& origin) {
    if (!has_value()) reject("{} has no value; expected {}", origin.text(), name(kind));
    return take_value();
  }

  // Sets a key by a switch, or by another tool's name of a choice.
  void stands_for(const Key& key, const Word& word, const Origin& origin) {
    std::string given = "true";
    if (word.values.front().first == given) {
      refuse_value(origin);
    } else {
      Limits limits;
      for (const auto& [from, to] : word.values) limits.choices.emplace_back(from);
      Assignments().set(Field(given), needed_value(Kind::word, origin), origin, limits);
    }
    const auto pair =
        std::ranges::find_if(word.values, [&](const auto& one) { return one.first == given; });
    const std::string value(pair->second);
    if (!key.field) {
      if (!key.takes(value)) notes.without_field(key, value, origin);
      return;
    }
    const Field field = key.field(config);
    said.set(field, value_of(field.kind(), value), origin);
  }

  void set(const Key& key, const Origin& origin) {
    const Field field = key.field(config);
    if (field.kind() == Kind::truth) {
      refuse_value(origin);
      return said.set(field, true, origin);
    }
    said.set(field, value_or_text(field.kind(), needed_value(field.kind(), origin)), origin,
             key.limits);
  }

  void without_field(const Key& key, const Origin& origin) {
    std::vector<std::string> values;
    while (has_value()) values.push_back(take_value());
    const bool takes =
        values.empty() ? key.takes(true)
                       : values.size() == 1 && key.takes(value_or_text(Kind::number, values[0]));
    if (!takes) notes.without_field(key, values.empty() ? "true" : values[0], origin);
  }
};

}  // namespace

void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   TrainingConfig& config, Assignments& said, Notes& notes) {
  ArgumentReader reader{source, words, config, said, notes};
  while (reader.next < words.size()) reader.argument();
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
    if (words.size() > most) throw FileError("{} has more than {} words", file, most);
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
  if (quote) throw FileError("{}: a quote {} is not closed", file, quote);
  end_word();
  return words;
}

std::vector<std::string> read_words(const std::string& path) {
  return words_of(path, MappedFile(path).text());
}

void read_axis(const std::string& axis, const std::string& text, TrainingConfig& config,
               Assignments& said) {
  const Key* const key = find_key(&Key::axis, axis);
  if (!key) reject("unknown axis '{}'", axis);
  if (!key->unset.empty() && text == key->unset) return;
  const Field field = key->field(config);
  const Value value = value_or_text(field.kind(), text);
  if (!key->unset.empty() && field.kind() == Kind::whole && !std::holds_alternative<double>(value))
    reject("--{} is '{}'; expected a whole number or '{}'", axis, text, key->unset);
  said.set(field, value, {"command line", fmt::format("--{}", axis)}, key->limits);
}

std::string axis_text(const Key& key, TrainingConfig& config) {
  const Field field = key.field(config);
  const std::string text = field.text();
  if (field.kind() == Kind::truth) return text == "true" ? "on" : "off";
  return text == "none" && !key.unset.empty() ? std::string(key.unset) : text;
}

}  // namespace suite::configuration
