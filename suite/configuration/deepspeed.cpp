// DeepSpeed's ds_config.json.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "suite/configuration/readers.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

using LeafKind = Leaf::Kind;

Value value_of(const Leaf& leaf) {
  switch (leaf.kind) {
    case LeafKind::boolean:
      return leaf.boolean;
    case LeafKind::number:
      return leaf.number;
    case LeafKind::text:
      return leaf.text;
    case LeafKind::numbers:
      return leaf.numbers;
    default:
      return std::monostate{};
  }
}

class Reader {
 public:
  Reader(const std::string& file, const std::vector<Leaf>& leaves, TrainingConfig& config,
         Assignments& said, Notes& notes)
      : file_(file), leaves_(leaves), config_(config), said_(said), notes_(notes) {}

  void read() {
    for (const Leaf& leaf : leaves_) read(leaf);
  }

 private:
  void read(const Leaf& leaf) {
    std::string path = leaf.path;
    const Word* const word = rename(path);
    if (const Key* key = word ? find_key(path) : find_key(&Key::deepspeed, path))
      return key->field ? set(*key, leaf, word) : without_field(*key, leaf);
    if (is_section(path)) {
      if (leaf.kind != LeafKind::object && leaf.kind != LeafKind::null)
        throw FileError(
            fmt::format("{} is {}; expected an object of keys", name_of(leaf), leaf.described()));
      return;
    }
    unknown(leaf, path);
  }

  // Older names and other tools' become DeepSpeed's own.
  const Word* rename(std::string& path) {
    for (const Word& word : words()) {
      const bool below = path.starts_with(word.from) && path.size() > word.from.size() &&
                         path[word.from.size()] == '.';
      if (path != word.from && !below) continue;
      path.replace(0, word.from.size(), word.to);
      if (word.deprecated && !below)
        notes_.warnings.push_back(
            fmt::format("{}: {} is an older name of {}", file_, word.from, word.to));
      if (below) return rename(path);  // a section
      return &word;
    }
    return nullptr;
  }

  std::string name_of(const Leaf& leaf) const { return Origin{file_, printable(leaf.path)}.text(); }

  void set(const Key& key, const Leaf& leaf, const Word* word) {
    const Origin origin{file_, printable(leaf.path)};
    const Field field = key.field(config_);
    const bool is_switch = word && !word->values.empty();
    if (leaf.kind == LeafKind::object || leaf.kind == LeafKind::list)
      throw FileError(fmt::format("{} is {}; expected {}", name_of(leaf), leaf.described(),
                                  name(is_switch ? Kind::truth : field.kind())));
    if (leaf.kind == LeafKind::text && leaf.text == "auto") {
      if (!is_switch) notes_.automatic.emplace_back(&key, origin);
      return;  // a switch: TrainingArguments leave it off
    }
    if (is_switch) {
      if (leaf.kind != LeafKind::boolean && leaf.kind != LeafKind::null)
        throw harness::UsageError(fmt::format("{} is {}; expected {}", origin.text(),
                                              leaf.described(), name(Kind::truth)));
      const std::string_view given = leaf.boolean ? "true" : "false";
      for (const auto& [from, to] : word->values)
        if (leaf.kind == LeafKind::boolean && from == given)
          said_.set(field, configuration::value_of(field.kind(), std::string(to)), origin);
      return;
    }
    said_.set(field, value_of(leaf), origin, key.limits);
    for (const auto& [from, to] : key.limits.synonyms)
      if (leaf.kind == LeafKind::text && leaf.text == from)
        notes_.warnings.push_back(
            fmt::format("{} is '{}', which is taken as {}", name_of(leaf), from, to));
  }

  void without_field(const Key& key, const Leaf& leaf) {
    bool asks = leaf.kind == LeafKind::list || !key.takes(value_of(leaf));
    if (leaf.kind == LeafKind::object) {
      asks = !std::ranges::any_of(leaves_, [&](const Leaf& other) {
        return other.path == leaf.path + ".enabled" && other.kind == LeafKind::boolean &&
               !other.boolean;
      });
      answered_.push_back(leaf.path + ".");  // what is below was answered with it
    }
    if (asks) notes_.without_field(key, leaf.described(), {file_, printable(leaf.path)});
  }

  // Names the first part of the path that is not known.
  void unknown(const Leaf& leaf, const std::string& path) {
    for (const std::string& section : answered_)
      if (leaf.path.starts_with(section)) return;
    std::size_t end = path.find('.');
    while (end != std::string::npos && is_section(path.substr(0, end)))
      end = path.find('.', end + 1);
    const std::string wrong = path.substr(0, end);
    if (!unknown_.insert(wrong).second) return;
    const std::string near = nearest_key(wrong);
    notes_.refuse(fmt::format(
        "{}: unknown key {}{}", file_, in_quotes(wrong),
        near.empty() ? "; nothing here honours it" : fmt::format("; did you mean '{}'?", near)));
  }

  const std::string& file_;
  const std::vector<Leaf>& leaves_;
  TrainingConfig& config_;
  Assignments& said_;
  Notes& notes_;
  std::vector<std::string> answered_;
  std::set<std::string> unknown_;
};

}  // namespace

void Notes::refuse(const std::string& what) {
  if (!ignore_unknown)
    throw harness::UsageError(fmt::format("{} (--ignore-unknown-keys makes it a warning)", what));
  warnings.push_back(fmt::format("ignored: {}", what));
}

void Notes::without_field(const Key& key, const std::string& value, const Origin& origin) {
  const std::string see = key.instead.empty() ? "" : fmt::format("; see {}", key.instead);
  if (key.effect == Effect::refused)
    refuse(fmt::format("{} ({}) is not honoured: {}{}", origin.text(), value, key.why, see));
  else
    warnings.push_back(
        fmt::format("{} ({}) changes nothing here: {}{}", origin.text(), value, key.why, see));
  ignored.push_back({std::string(key.name()), value, origin.text(), std::string(key.why)});
}

void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves,
                    TrainingConfig& config, Assignments& said, Notes& notes) {
  Reader(file, leaves, config, said, notes).read();
}

}  // namespace suite::configuration
