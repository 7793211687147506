#include "suite/files/json_leaves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "machine/base/names.h"
#include "suite/files/mapped_file.h"

namespace suite {
namespace {

constexpr std::size_t deepest = 16, largest_file = 16 << 20;

class LeafReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  LeafReader(const std::string& file, std::string_view json) : file_(file), json_(json) {}
  std::vector<Leaf> leaves;

  bool start_object(std::size_t) override {
    if (in_list())
      leaves.back().kind = Leaf::Kind::list;
    else if (depth_ > 0)
      leaves.push_back({path(), Leaf::Kind::object});
    return enter();
  }
  bool end_object() override {
    --depth_;
    if (!in_list()) keys_.pop_back();
    return true;
  }
  bool key(std::string& text) override {
    if (in_list()) return true;
    names_.resize(depth_ - 1);
    names_.push_back(text);
    if (!keys_.back().insert(text).second)
      throw FileError("{}: {} is given twice; remove one", file_, printable(path()));
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) refuse_top("a list");
    if (in_list()) {
      leaves.back().kind = Leaf::Kind::list;
    } else {
      leaves.push_back({path(), Leaf::Kind::value, std::vector<double>()});
      list_depth_ = depth_;
    }
    return enter();
  }
  bool end_array() override {
    if (--depth_ == list_depth_) list_depth_ = 0;
    return true;
  }

  bool null() override { return plain({}, "null"); }
  bool boolean(bool value) override { return plain(value, "true or false"); }
  bool number_integer(std::int64_t value) override {
    return number_float(static_cast<double>(value), fmt::format("{}", value));
  }
  bool number_unsigned(std::uint64_t value) override {
    return number_float(static_cast<double>(value), fmt::format("{}", value));
  }
  bool number_float(double value, const std::string& text) override {
    if (!in_list()) return plain(value, "a number", text);
    std::get<std::vector<double>>(leaves.back().value).push_back(value);
    return true;
  }
  bool string(std::string& text) override { return plain(text, "a text"); }
  bool binary(nlohmann::json::binary_t&) override { return plain({}, "bytes"); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override {
    const std::string_view before = json_.substr(0, std::min(position, json_.size()));
    const auto line = 1 + std::ranges::count(before, '\n');
    const std::size_t begin = before.rfind('\n') + 1;  // 0 if there is no newline
    const std::string where = names_.empty() ? "" : fmt::format(", at {}", printable(path()));
    const bool too_large = error.id == 406;  // nlohmann's code for a number beyond double
    throw FileError("{}: line {}, column {}{}: {}", file_, line,
                    std::max<std::size_t>(before.size() - begin, 1), where,
                    too_large ? fmt::format("{} is out of range", printable(token))
                              : "not valid JSON from here");
  }

 private:
  bool in_list() const { return list_depth_ > 0; }
  bool enter() {
    if (depth_ == deepest)
      throw FileError("{}: {} is nested more than {} levels deep", file_, printable(path()),
                      deepest);
    ++depth_;
    if (!in_list()) keys_.emplace_back();
    return true;
  }
  [[noreturn]] void refuse_top(std::string_view found) const {
    throw FileError("{} is {}; expected an object of keys", file_, found);
  }
  std::string path() const { return fmt::format("{}", fmt::join(names_, ".")); }
  // Adds a value. If the value is not a number, marks an enclosing list as not only numbers.
  bool plain(Value value, std::string_view found, const std::string& written = {}) {
    if (depth_ == 0) refuse_top(found);
    if (in_list())
      leaves.back().kind = Leaf::Kind::list;
    else
      leaves.push_back({path(), Leaf::Kind::value, std::move(value), written});
    return true;
  }

  const std::string& file_;
  std::string_view json_;
  std::size_t depth_ = 0, list_depth_ = 0;   // open levels; depth of the outermost list
  std::vector<std::set<std::string>> keys_;  // keys of each open object, outside of lists
  std::vector<std::string> names_;
};

}  // namespace

std::string text(const Value& value) {
  if (const auto* const on = std::get_if<bool>(&value)) return *on ? "true" : "false";
  if (const auto* const number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* const word = std::get_if<std::string>(&value)) return in_quotes(*word);
  if (const auto* const list = std::get_if<std::vector<double>>(&value))
    return fmt::format("a list of {} numbers", list->size());
  return "null";
}

std::string Leaf::described() const {
  if (kind != Kind::value) return kind == Kind::list ? "a list" : "an object";
  if (std::holds_alternative<double>(value)) return printable(written);
  const auto* const numbers = std::get_if<std::vector<double>>(&value);
  if (!numbers) return suite::text(value);
  std::string list;
  for (const double number : *numbers)
    if (list.size() < 60) list += fmt::format("{}{}", list.empty() ? "" : ", ", number);
  return fmt::format("[{}]", list);
}

std::vector<Leaf> read_leaves(const std::string& path) {
  const MappedFile file(path);
  if (file.size() > largest_file)
    throw FileError("{} has {} bytes; a configuration has at most {}", path, file.size(),
                    largest_file);
  return leaves_of(path, file.text());
}

std::vector<Leaf> leaves_of(const std::string& file, std::string_view json) {
  LeafReader reader(file, json);
  nlohmann::json::sax_parse(json, &reader, nlohmann::json::input_format_t::json, true, true);
  return std::move(reader.leaves);
}

}  // namespace suite
