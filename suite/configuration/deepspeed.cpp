// DeepSpeed's ds_config.json.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "machine/base/names.h"
#include "suite/configuration/readers.h"
#include "suite/files/mapped_file.h"
#include "suite/options/options.h"

namespace suite::configuration {
namespace {

struct Reader {
  const std::string& file;
  const std::vector<Leaf>& leaves;
  TrainingConfig& config;
  Assignments& said;
  Notes& notes;
  std::vector<std::string> answered{};  // refused or ignored sections, each with its final dot
  std::set<std::string> unknown_keys{};

  void read(const Leaf& leaf) {
    std::string path = leaf.path;
    const Word* const word = rename(path);
    if (const Key* key = word ? find_key(path) : find_key(&Key::deepspeed, path)) {
      if (key->field) return set(*key, leaf, word);
      return without_field(*key, leaf);
    }
    if (!is_section(path)) return unknown(leaf, path);
    if (leaf.kind != Leaf::Kind::object && !is_null(leaf))
      reject("{} is {}; expected an object of keys", origin_of(leaf).text(), leaf.described());
  }

  // Replaces older names and other tools' names by DeepSpeed's.
  const Word* rename(std::string& path) {
    for (const Word& word : words()) {
      const bool below = path.starts_with(word.from) && path.size() > word.from.size() &&
                         path[word.from.size()] == '.';
      if (path != word.from && !below) continue;
      path.replace(0, word.from.size(), word.to);
      if (word.deprecated && !below)
        notes.warnings.push_back(
            fmt::format("{}: {} is an older name of {}", file, word.from, word.to));
      if (below) return rename(path);  // a section
      return &word;
    }
    return nullptr;
  }

  Origin origin_of(const Leaf& leaf) const { return {file, printable(leaf.path)}; }

  static bool is_null(const Leaf& leaf) {
    return leaf.kind == Leaf::Kind::value && std::holds_alternative<std::monostate>(leaf.value);
  }

  void set(const Key& key, const Leaf& leaf, const Word* word) {
    const Origin origin = origin_of(leaf);
    const Field field = key.field(config);
    const bool is_switch = word && !word->values.empty();
    const bool* const on = std::get_if<bool>(&leaf.value);
    const std::string* const text = std::get_if<std::string>(&leaf.value);
    if (text && *text == "auto") {
      if (!is_switch) notes.automatic.emplace_back(&key, origin);
      return;  // TrainingArguments do not turn on a switch
    }
    if (leaf.kind != Leaf::Kind::value || (is_switch && !on && !is_null(leaf)))
      reject("{} is {}; expected {}", origin.text(), leaf.described(),
             name(is_switch ? Kind::truth : field.kind()));
    if (is_switch) {
      for (const auto& [from, to] : word->values)
        if (on && from == (*on ? "true" : "false"))
          said.set(field, value_of(field.kind(), std::string(to)), origin);
      return;
    }
    said.set(field, leaf.value, origin, key.limits);
    for (const auto& [from, to] : key.limits.synonyms)
      if (text && *text == from)
        notes.warnings.push_back(
            fmt::format("{} is '{}', which means {}", origin.text(), from, to));
  }

  void without_field(const Key& key, const Leaf& leaf) {
    bool asks = leaf.kind == Leaf::Kind::list || !key.takes(leaf.value);
    // DeepSpeed's 1-bit optimizers read the key and never correct the bias.
    if (key.deepspeed == "optimizer.params.bias_correction" &&
        std::ranges::any_of(leaves, [](const Leaf& other) {
          const std::string* const type = std::get_if<std::string>(&other.value);
          return other.path == "optimizer.type" && type &&
                 (type->starts_with("OneBit") || type->starts_with("one_bit"));
        }))
      asks = false;
    if (leaf.kind == Leaf::Kind::object) {
      asks = !std::ranges::any_of(leaves, [&](const Leaf& other) {
        return other.path == leaf.path + ".enabled" && other.value == Value(false);
      });
      answered.push_back(leaf.path + ".");
    }
    if (!asks) return;
    notes.without_field(key, leaf.described(), origin_of(leaf));
  }

  // Sets DeepSpeed's defaults of a block sparse_attention (deepspeed/runtime/config.py).
  void complete_sparse_attention() {
    if (!std::ranges::any_of(leaves, [](const Leaf& leaf) {
          return leaf.path == "sparse_attention" && leaf.kind == Leaf::Kind::object;
        }))
      return;
    const Origin origin{"DeepSpeed's default", ""};
    layers::SparseMode& mode = config.model.sparse.pattern.mode;
    std::string& direction = config.model.sparse_direction;
    if (!said.said(&mode))
      said.set(find_key("sparse_attention.mode")->field(config), std::string("fixed"), origin);
    if (!said.said(&direction)) said.set(Field(direction), std::string("bidirectional"), origin);
    std::optional<int>& random = config.model.sparse.pattern.num_random_blocks;
    if (mode == layers::SparseMode::bigbird && !said.said(&random))
      said.set(Field(random), 1.0, origin);
  }

  // Rejects the first unknown part of the path.
  void unknown(const Leaf& leaf, const std::string& path) {
    for (const std::string& section : answered)
      if (leaf.path.starts_with(section)) return;
    std::size_t end = path.find('.');
    while (end != std::string::npos && is_section(path.substr(0, end)))
      end = path.find('.', end + 1);
    const std::string wrong = path.substr(0, end);
    if (!unknown_keys.insert(wrong).second) return;
    const std::string near = nearest_key(wrong);
    notes.refuse(fmt::format("{}: unknown key {}{}", file, in_quotes(wrong),
                             near.empty() ? "; this program does not use it"
                                          : fmt::format("; did you mean '{}'?", near)));
  }
};

}  // namespace

void Notes::refuse(const std::string& what) {
  if (!ignore_unknown) reject("{} (--ignore-unknown-keys makes it a warning)", what);
  warnings.push_back(fmt::format("ignored: {}", what));
}

void Notes::without_field(const Key& key, const std::string& said, const Origin& origin) {
  const std::string see = key.instead.empty() ? "" : fmt::format("; see {}", key.instead);
  if (key.effect == Effect::refused)
    refuse(fmt::format("{} ({}) is not honoured: {}{}", origin.text(), said, key.why, see));
  else
    warnings.push_back(
        fmt::format("{} ({}) has no effect here: {}{}", origin.text(), said, key.why, see));
  ignored.push_back({std::string(key.name()), said, origin.text(), std::string(key.why)});
}

void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves,
                    TrainingConfig& config, Assignments& said, Notes& notes) {
  Reader reader{file, leaves, config, said, notes};
  for (const Leaf& leaf : leaves) reader.read(leaf);
  reader.complete_sparse_attention();
}

void set_muon_defaults(TrainingConfig& config, Assignments& said, bool deepspeed) {
  TrainingConfig::Optimizer& optimizer = config.optimizer;
  if (optimizer.type != "muon") return;
  const Origin origin{deepspeed ? "DeepSpeed's default" : "Megatron-LM's default", ""};
  const auto set = [&](auto& member, const Value& value) {
    if (!said.said(&member)) said.set(Field(member), value, origin);
  };
  set(optimizer.momentum, deepspeed ? 0.95 : 0.9);
  if (!deepspeed) return;
  set(optimizer.muon.nesterov, true);
  set(optimizer.muon.split_qkv, false);
  set(optimizer.muon.coefficient_type, std::string("simple"));
  set(optimizer.muon.scale_mode, std::string("shape_scaling"));
}

}  // namespace suite::configuration
