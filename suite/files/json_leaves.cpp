#include "suite/files/json_leaves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "suite/files/mapped_file.h"

namespace suite {
namespace {

constexpr std::size_t deepest = 16, largest_file = 16 << 20;

class LeafReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  LeafReader(const std::string& file, std::string_view json) : file_(file), json_(json) {}
  std::vector<Leaf> leaves;

  bool start_object(std::size_t) override {
    if (in_list()) return enter(Level::inner);
    if (levels_.empty()) return enter(Level::top);
    add(Leaf::Kind::object);
    return enter(Level::object);
  }
  bool end_object() override { return leave(); }
  bool key(std::string& text) override {
    if (in_list()) return true;
    if (!keys_.back().insert(text).second)
      throw FileError(fmt::format("{}: {} stands there twice; one of the two is not meant", file_,
                                  printable(path_of(text))));
    names_.resize(levels_.size() - 1);
    names_.push_back(text);
    return true;
  }
  bool start_array(std::size_t) override {
    if (levels_.empty()) refuse_top("a list");
    if (!in_list()) {
      add(Leaf::Kind::numbers);
      list_ = leaves.size();
    } else {
      leaves[list_ - 1].kind = Leaf::Kind::list;
    }
    return enter(Level::list);
  }
  bool end_array() override {
    leave();
    if (levels_.back() == Level::top || levels_.back() == Level::object) list_ = 0;
    return true;
  }

  bool null() override { return plain(Leaf::Kind::null, "null"); }
  bool boolean(bool value) override {
    if (Leaf* leaf = plain_leaf(Leaf::Kind::boolean, "true or false")) leaf->boolean = value;
    return true;
  }
  bool number_integer(std::int64_t value) override {
    return number(static_cast<double>(value), fmt::format("{}", value));
  }
  bool number_unsigned(std::uint64_t value) override {
    return number(static_cast<double>(value), fmt::format("{}", value));
  }
  bool number_float(double value, const std::string& text) override { return number(value, text); }
  bool string(std::string& text) override {
    if (Leaf* leaf = plain_leaf(Leaf::Kind::text, "a text")) leaf->text = text;
    return true;
  }
  bool binary(nlohmann::json::binary_t&) override { return plain(Leaf::Kind::list, "bytes"); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override {
    const std::string_view before = json_.substr(0, std::min(position, json_.size()));
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t begin = before.rfind('\n') + 1;  // 0 where there is none
    const std::string where = names_.empty() ? "" : fmt::format(", at {}", printable(path()));
    const bool too_large = error.id == 406;  // of nlohmann's: a number that no double holds
    throw FileError(fmt::format("{}: line {}, column {}{}: {}", file_, line,
                                std::max<std::size_t>(before.size() - begin, 1), where,
                                too_large
                                    ? fmt::format("{} is no number that there is", printable(token))
                                    : "not JSON from here on"));
  }

 private:
  enum class Level : unsigned char { top, object, list, inner };

  bool in_list() const { return list_ != 0; }
  bool enter(Level level) {
    if (levels_.size() == deepest)
      throw FileError(fmt::format("{}: {} lies more than {} levels deep; no configuration does",
                                  file_, printable(path()), deepest));
    levels_.push_back(level);
    if (!in_list()) keys_.emplace_back();
    if (level == Level::inner) leaves[list_ - 1].kind = Leaf::Kind::list;
    return true;
  }
  bool leave() {
    levels_.pop_back();
    if (!in_list()) keys_.pop_back();
    return true;
  }
  [[noreturn]] void refuse_top(std::string_view found) const {
    throw FileError(fmt::format("{} is {}; expected an object of keys", file_, found));
  }

  std::string path() const {
    std::string text;
    for (const std::string& name : names_) text += (text.empty() ? "" : ".") + name;
    return text;
  }
  std::string path_of(const std::string& key) const {
    std::string text;
    for (std::size_t i = 0; i + 1 < levels_.size(); ++i) text += names_[i] + ".";
    return text + key;
  }
  Leaf& add(Leaf::Kind kind) { return leaves.emplace_back(Leaf{.path = path(), .kind = kind}); }
  // Null within a list, which is then no list of numbers.
  Leaf* plain_leaf(Leaf::Kind kind, std::string_view found) {
    if (levels_.empty()) refuse_top(found);
    if (!in_list()) return &add(kind);
    leaves[list_ - 1].kind = Leaf::Kind::list;
    return nullptr;
  }
  bool plain(Leaf::Kind kind, std::string_view found) {
    plain_leaf(kind, found);
    return true;
  }
  bool number(double value, const std::string& text) {
    if (levels_.empty()) refuse_top("a number");
    if (in_list()) {
      leaves[list_ - 1].numbers.push_back(value);
      return true;
    }
    Leaf& leaf = add(Leaf::Kind::number);
    leaf.number = value;
    leaf.text = text;
    return true;
  }

  const std::string& file_;
  std::string_view json_;
  std::vector<Level> levels_;
  std::vector<std::set<std::string>> keys_;  // of each object that is open, outside of lists
  std::vector<std::string> names_;
  std::size_t list_ = 0;  // 1 + the leaf of the outermost list that is open
};

}  // namespace

std::string Leaf::described() const {
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return boolean ? "true" : "false";
    case Kind::number:
      return printable(text);
    case Kind::text:
      return in_quotes(text);
    case Kind::numbers: {
      std::string list;
      for (const double value : numbers)
        if (list.size() < 60) list += fmt::format("{}{}", list.empty() ? "" : ", ", value);
      return fmt::format("[{}]", list);
    }
    case Kind::list:
      return "a list";
    case Kind::object:
      return "an object";
  }
  return "?";
}

std::vector<Leaf> leaves_of(const std::string& file, std::string_view json) {
  if (json.size() > largest_file)
    throw FileError(fmt::format("{} has {} bytes; a configuration has at most {}", file,
                                json.size(), largest_file));
  LeafReader reader(file, json);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader, nlohmann::json::input_format_t::json,
                            true, true);
  return std::move(reader.leaves);
}

std::vector<Leaf> read_leaves(const std::string& path) {
  return leaves_of(path, MappedFile(path).text());
}

}  // namespace suite
