#include "suite/configuration/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <stdexcept>

#include "machine/base/names.h"

namespace suite::configuration {
namespace {

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }
std::string_view section_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}
bool lies_in(std::string_view path, std::string_view section) {
  return path.size() > section.size() && path.starts_with(section) && path[section.size()] == '.';
}

}  // namespace

Word older(std::string_view from, Word::Values values) {
  return {.from = from, .values = std::move(values), .deprecated = true};
}

Word selecting(std::string_view value, std::string_view from) {
  return {.from = from, .values = {{"true", value}}};
}

Key row(std::string_view megatron, std::string_view deepspeed, FieldOf field, Predicted predicted,
        Limits limits, const Needs* needs) {
  return {.megatron = megatron,
          .deepspeed = deepspeed,
          .field = field,
          .predicted = predicted,
          .limits = std::move(limits),
          .needs = needs};
}

Key axis(std::string_view name, std::string_view deepspeed, FieldOf field, Predicted predicted,
         std::string_view about, Limits limits, const Needs* needs) {
  Key key = row("", deepspeed, field, predicted, std::move(limits), needs);
  if (name.starts_with("--")) key.megatron = name;
  key.axis = name.substr(key.megatron.empty() ? 0 : 2);
  key.about = about;
  return key;
}

bool Key::takes(const Value& value) const {
  if (inert == "*" || std::holds_alternative<std::monostate>(value)) return true;
  return std::ranges::any_of(std::views::split(inert, '|'), [&](const auto& one) {
    const std::string word(one.begin(), one.end());
    if (const auto* const text = std::get_if<std::string>(&value)) return *text == word;
    const Kind kind = std::holds_alternative<bool>(value) ? Kind::truth : Kind::number;
    return value_of(kind, word) == value;
  });
}

Key Key::also(Word word) && {
  words.push_back(std::move(word));
  return std::move(*this);
}

Key Key::demanding(Needs condition) && {
  demands.push_back(condition);
  return std::move(*this);
}

std::span<const Key> keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> rows;
    for (const auto& part :
         {model_keys(), sparse_keys(), step_keys(), zero_keys(), unsupported_keys()})
      rows.insert(rows.end(), part.begin(), part.end());
    return rows;
  }();
  return all;
}

std::span<const Word> words() {
  static const std::vector<Word> all = [] {
    std::vector<Word> list;
    for (const Key& key : keys())
      for (const Word& word : key.words) {
        list.push_back(word);
        // In the language of the word, because warnings print both.
        list.back().to = word.from.starts_with("--") ? key.command_name() : key.name();
      }
    // Synonyms of a section, and of keys without effect.
    for (const auto& [from, to] :
         {std::pair("bfloat16", "bf16"),
          {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
           "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
          {"aio.thread_count", "aio.intra_op_parallelism"},
          {"seq_parallel_comm_data_type", "seq_parallel_communication_data_type"}}) {
      list.push_back(older(from));
      list.back().to = to;
    }
    return list;
  }();
  return all;
}

void check_demands(const TrainingConfig& config) {
  TrainingConfig given = config, fresh;
  for (const Key& key : keys()) {
    if (key.demands.empty() || (key.needs && !key.needs->met(config))) continue;
    const std::string value = key.field(given).text();
    if (value == key.field(fresh).text()) continue;
    for (const Needs& demand : key.demands)
      if (!demand.met(config))
        throw std::invalid_argument(fmt::format("{} {} requires {}",
                                                key.axis.empty() ? key.name() : key.axis,
                                                value == "true" ? "on" : value, demand.what));
  }
}

const Key* find_key(std::string_view Key::*language, std::string_view name) {
  const auto found = std::ranges::find(keys(), name, language);
  return name.empty() || found == keys().end() ? nullptr : &*found;
}

const Key* find_key(std::string_view name) {
  for (const auto language : {&Key::deepspeed, &Key::megatron, &Key::axis})
    if (const Key* key = find_key(language, name)) return key;
  return nullptr;
}

bool is_section(std::string_view path) {
  return std::ranges::any_of(keys(),
                             [&](const Key& key) { return lies_in(key.deepspeed, path); }) ||
         std::ranges::any_of(words(), [&](const Word& word) { return lies_in(word.from, path); });
}

std::string nearest_key(std::string_view path) {
  std::vector<std::string_view> paths;
  for (const Key& key : keys())
    if (key.field && !key.deepspeed.empty()) paths.push_back(key.deepspeed);
  const auto path_of = [&](std::string_view name) {
    const auto found = std::ranges::find(paths, name, last_name);
    return std::string(found == paths.end() ? "" : *found);
  };
  if (const std::string same = path_of(last_name(path)); !same.empty()) return same;
  // Compare siblings and sections first: most letters of a long path are its section's.
  const std::string_view section = section_of(path);
  std::vector<std::string> siblings, all;
  for (const std::string_view known : paths) {
    all.emplace_back(last_name(known));
    if (!section.empty() && !lies_in(known, section)) continue;
    const std::string_view rest = section.empty() ? known : known.substr(section.size() + 1);
    siblings.emplace_back(rest.substr(0, rest.find('.')));
  }
  const std::string name(last_name(path));
  if (const std::string near = machine::nearest(name, siblings); !near.empty())
    return section.empty() ? near : std::string(section) + "." + near;
  return path_of(machine::nearest(name, all));
}

std::vector<std::string> megatron_names() {
  std::vector<std::string> names;
  for (const Key& key : keys())
    if (!key.megatron.empty()) names.emplace_back(key.megatron);
  for (const Word& word : words())
    if (word.from.starts_with("--")) names.emplace_back(word.from);
  return names;
}

}  // namespace suite::configuration
