#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "suite/configuration/sources.h"
#include "suite/files/mapped_file.h"

namespace suite::configuration {
namespace {

using Kind = Leaf::Kind;

Value value_of(const Leaf& leaf) {
  switch (leaf.kind) {
    case Kind::boolean:
      return leaf.boolean;
    case Kind::number:
      return leaf.number;
    case Kind::text:
      return leaf.text;
    case Kind::numbers:
      return leaf.numbers;
    default:
      return std::monostate{};
  }
}

// Whether the value is among those of "false|0".
bool is_among(std::string_view values, const Leaf& leaf) {
  if (values == "*" || leaf.kind == Kind::null) return true;
  const std::string said = leaf.kind == Kind::text ? leaf.text : leaf.described();
  for (std::size_t begin = 0; begin <= values.size() && !values.empty();) {
    const std::size_t end = std::min(values.find('|', begin), values.size());
    if (values.substr(begin, end - begin) == said) return true;
    begin = end + 1;
  }
  return false;
}

class Reader {
 public:
  Reader(const std::string& file, const std::vector<Leaf>& leaves, Training& training,
         Assignments& said, Notes& notes)
      : file_(file), leaves_(leaves), training_(training), said_(said), notes_(notes) {}

  void read() {
    for (const Leaf& leaf : leaves_) read(leaf);
  }

 private:
  void read(const Leaf& leaf) {
    std::string path = leaf.path;
    Value value = value_of(leaf);
    rename(leaf, path, value);
    if (const Key* key = find_key(path))
      return key->field ? set(*key, leaf, value) : not_honoured(*key, leaf);
    if (is_section(path)) {
      if (leaf.kind != Kind::object && leaf.kind != Kind::null)
        throw FileError(
            fmt::format("{} is {}; expected an object of keys", name_of(leaf), leaf.described()));
      return;
    }
    unknown(leaf, path);
  }

  // Older names and other tools' become DeepSpeed's own.
  void rename(const Leaf& leaf, std::string& path, Value& value) {
    for (const Alias& alias : deepspeed_aliases()) {
      const bool below = path.starts_with(alias.from) && path.size() > alias.from.size() &&
                         path[alias.from.size()] == '.';
      if (path != alias.from && !below) continue;
      path.replace(0, alias.from.size(), alias.to);
      if (leaf.kind == Kind::boolean && !alias.when_true.empty())
        value = std::string(leaf.boolean ? alias.when_true : "none");
      if (alias.deprecated && !below)
        notes_.warnings.push_back(
            fmt::format("{}: {} is an older name of {}", file_, alias.from, alias.to));
      return;
    }
  }

  std::string name_of(const Leaf& leaf) const { return Origin{file_, printable(leaf.path)}.text(); }

  void set(const Key& key, const Leaf& leaf, const Value& value) {
    const Origin origin{file_, printable(leaf.path)};
    if (leaf.kind == Kind::object || leaf.kind == Kind::list)
      throw FileError(fmt::format("{} is {}; expected {}", name_of(leaf), leaf.described(),
                                  type_name(key.field(training_))));
    if (leaf.kind == Kind::text && leaf.text == "auto") {
      notes_.automatic.emplace_back(&key, origin);
      return;
    }
    said_.set(key.field(training_), value, origin, key.limits);
    for (const auto& [from, to] : key.limits.synonyms)
      if (leaf.kind == Kind::text && leaf.text == from)
        notes_.warnings.push_back(
            fmt::format("{} is '{}', which is taken as {}", name_of(leaf), from, to));
  }

  void not_honoured(const Key& key, const Leaf& leaf) {
    bool asks = !is_among(key.inert, leaf);
    if (leaf.kind == Kind::object) {
      asks = !std::ranges::any_of(leaves_, [&](const Leaf& other) {
        return other.path == leaf.path + ".enabled" && other.kind == Kind::boolean &&
               !other.boolean;
      });
      refused_.push_back(leaf.path + ".");  // what is below was answered with it
    }
    if (!asks) return;
    notes_.refuse(fmt::format("{} ({}) is not honoured: {}{}", name_of(leaf), leaf.described(),
                              key.why,
                              key.instead.empty() ? "" : fmt::format("; see {}", key.instead)));
  }

  // Names the first part of the path that is not known.
  void unknown(const Leaf& leaf, const std::string& path) {
    for (const std::string& section : refused_)
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
  Training& training_;
  Assignments& said_;
  Notes& notes_;
  std::vector<std::string> refused_;
  std::set<std::string> unknown_;
};

}  // namespace

void Notes::refuse(const std::string& what) {
  if (!ignore_unknown)
    throw harness::UsageError(fmt::format("{} (--ignore-unknown-keys makes it a warning)", what));
  warnings.push_back(fmt::format("ignored: {}", what));
}

void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves, Training& training,
                    Assignments& said, Notes& notes) {
  Reader(file, leaves, training, said, notes).read();
}

}  // namespace suite::configuration
