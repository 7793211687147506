#include "harness/json/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace harness {
namespace {

using Written = nlohmann::ordered_json;

Written written(const Json& value) {
  if (value.is_array()) {
    Written all = Written::array();
    for (const Json& one : value) all.push_back(written(one));
    return all;
  }
  if (value.is_object()) {
    // Not by operator[], which searches all members before.
    Written::object_t all;
    for (const auto& [key, one] : value.items())
      all.Written::object_t::Container::emplace_back(key, written(one));
    return all;
  }
  if (value.is_string()) return value.text();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<std::uint64_t>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  return nullptr;
}

// Builds a value while nlohmann reads its text.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(int most_levels) : most_levels_(most_levels) {}
  Json take() { return std::move(whole_); }

  bool null() override { return add({}) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(std::int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string& /*text*/) override {
    return add(value) != nullptr;
  }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(Json::object()); }
  bool key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t byte, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    const bool too_large = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    throw JsonError(too_large ? JsonError::Kind::number_too_large : JsonError::Kind::syntax,
                    error.what(), byte);
  }

 private:
  Json* add(Json value) {
    if (open_.empty()) {
      whole_ = std::move(value);
      return &whole_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return parent.end() - 1;
  }
  bool open(Json value) {
    if (static_cast<int>(open_.size()) == most_levels_)
      throw JsonError(JsonError::Kind::too_deep,
                      fmt::format("nested more than {} levels deep", most_levels_));
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  int most_levels_;
  Json whole_;
  std::vector<Json*> open_;  // a value grows only when all below it are closed
  std::string key_;
};

}  // namespace

Json::Json() = default;
Json::Json(const char* text) : value_(std::string(text)) {}
Json::Json(std::string_view text) : value_(std::string(text)) {}
Json::Json(std::string text) : value_(std::move(text)) {}
Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json::Json(std::initializer_list<Json> list) {
  const bool pairs = std::ranges::all_of(list, [](const Json& one) {
    return one.is_array() && one.size() == 2 && one[0].is_string();
  });
  if (!pairs) {
    value_ = Array(list);
    return;
  }
  value_ = Object();
  for (const Json& one : list) (*this)[one[0].text()] = one[1];
}

Json Json::array() { return array({}); }
Json Json::array(std::initializer_list<Json> list) {
  Json value;
  value.value_ = Array(list);
  return value;
}
Json Json::object() {
  Json value;
  value.value_ = Object();
  return value;
}

Json Json::parse(std::string_view text, int most_levels) {
  Reader reader(most_levels);
  nlohmann::json::sax_parse(text, &reader);
  return reader.take();
}

Json Json::parse_or_null(std::string_view text) {
  try {
    return parse(text);
  } catch (const JsonError&) {
    return {};
  }
}

std::string Json::dump(int indent) const {
  return written(*this).dump(indent, ' ', false, Written::error_handler_t::replace);
}

void Json::set(bool value) { value_ = value; }
void Json::set(std::int64_t value) { value_ = value; }
void Json::set(std::uint64_t value) { value_ = value; }
void Json::set(double value) { value_ = value; }

bool Json::is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
bool Json::is_boolean() const { return std::holds_alternative<bool>(value_); }
bool Json::is_number() const {
  return is_number_integer() || std::holds_alternative<double>(value_);
}
bool Json::is_number_integer() const {
  return std::holds_alternative<std::int64_t>(value_) ||
         std::holds_alternative<std::uint64_t>(value_);
}
bool Json::is_number_unsigned() const { return std::holds_alternative<std::uint64_t>(value_); }
bool Json::is_string() const { return std::holds_alternative<std::string>(value_); }
bool Json::is_array() const { return std::holds_alternative<Array>(value_); }
bool Json::is_object() const { return std::holds_alternative<Object>(value_); }

void Json::fail(const char* expected) const {
  throw JsonError(JsonError::Kind::type, fmt::format("{}; expected {}", dump(), expected));
}

bool Json::boolean() const {
  if (const bool* const value = std::get_if<bool>(&value_)) return *value;
  fail("true or false");
}

std::uint64_t Json::integer() const {
  if (const auto* const value = std::get_if<std::int64_t>(&value_))
    return static_cast<std::uint64_t>(*value);
  if (const auto* const value = std::get_if<std::uint64_t>(&value_)) return *value;
  if (const auto* const value = std::get_if<double>(&value_))
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(*value));
  fail("a number");
}

double Json::number() const {
  if (const auto* const value = std::get_if<std::int64_t>(&value_))
    return static_cast<double>(*value);
  if (const auto* const value = std::get_if<std::uint64_t>(&value_))
    return static_cast<double>(*value);
  if (const auto* const value = std::get_if<double>(&value_)) return *value;
  fail("a number");
}

const std::string& Json::text() const {
  if (const std::string* const value = std::get_if<std::string>(&value_)) return *value;
  fail("a text");
}

const char* Json::type_name() const {
  constexpr const char* names[] = {"null",   "boolean", "number", "number",
                                   "number", "string",  "array",  "object"};
  static_assert(std::size(names) == std::variant_size_v<decltype(value_)>);
  return names[value_.index()];
}

const Json* Json::find(std::string_view key) const {
  const Object* const members = std::get_if<Object>(&value_);
  if (members == nullptr) return nullptr;
  const auto found = std::ranges::find(*members, key, &Member::key);
  return found == members->end() ? nullptr : &found->value;
}

const Json* Json::find_path(std::string_view path) const {
  const Json* at = this;
  while (at != nullptr && !path.empty()) {
    path.remove_prefix(1);
    const std::string_view key = path.substr(0, path.find('/'));
    path.remove_prefix(key.size());
    if (!at->is_array()) {
      at = at->find(key);
      continue;
    }
    std::size_t index = at->size();
    std::from_chars(key.data(), key.data() + key.size(), index);
    at = index < at->size() ? &(*at)[index] : nullptr;
  }
  return at;
}

const Json& Json::at(std::string_view key) const {
  if (const Json* const found = find(key)) return *found;
  if (!is_object()) fail("an object");
  throw JsonError(JsonError::Kind::missing, fmt::format("key \"{}\" is missing", key));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) value_ = Object();
  if (!is_object()) fail("an object");
  Object& members = std::get<Object>(value_);
  const auto found = std::ranges::find(members, key, &Member::key);
  if (found != members.end()) return found->value;
  members.push_back({std::string(key), {}});
  return members.back().value;
}

void Json::erase(std::string_view key) {
  if (Object* const members = std::get_if<Object>(&value_))
    std::erase_if(*members, [&](const Member& member) { return member.key == key; });
}

void Json::update(const Json& other) {
  for (const auto& [key, value] : other.items()) (*this)[key] = value;
}

std::span<const Json::Member> Json::items() const {
  if (is_null()) return {};
  if (!is_object()) fail("an object");
  return std::get<Object>(value_);
}
std::span<Json::Member> Json::items() {
  if (is_null()) return {};
  if (!is_object()) fail("an object");
  return std::get<Object>(value_);
}

Json::Array& Json::elements() {
  if (is_null()) value_ = Array();
  if (!is_array()) fail("an array");
  return std::get<Array>(value_);
}

void Json::push_back(Json value) { elements().push_back(std::move(value)); }

void Json::pop_back() {
  if (empty()) fail("an array with elements");
  elements().pop_back();
}

Json& Json::operator[](std::size_t index) { return const_cast<Json&>(std::as_const(*this)[index]); }
const Json& Json::operator[](std::size_t index) const {
  if (!is_array()) fail("an array");
  const Array& all = std::get<Array>(value_);
  if (index >= all.size())
    throw JsonError(JsonError::Kind::missing,
                    fmt::format("element {} of {} is missing", index, all.size()));
  return all[index];
}

Json* Json::begin() { return is_array() ? std::get<Array>(value_).data() : nullptr; }
Json* Json::end() { return begin() + (is_array() ? size() : 0); }
const Json* Json::begin() const { return is_array() ? std::get<Array>(value_).data() : nullptr; }
const Json* Json::end() const { return begin() + (is_array() ? size() : 0); }

std::size_t Json::size() const {
  if (const Array* const all = std::get_if<Array>(&value_)) return all->size();
  if (const Object* const members = std::get_if<Object>(&value_)) return members->size();
  return is_null() ? 0 : 1;
}

bool Json::equals(const Json& other) const {
  if (is_number() && other.is_number()) {
    if (std::holds_alternative<double>(value_) || std::holds_alternative<double>(other.value_))
      return number() == other.number();
    const auto negative = [](const Json& of) {
      const auto* const value = std::get_if<std::int64_t>(&of.value_);
      return value != nullptr && *value < 0;
    };
    return negative(*this) == negative(other) && integer() == other.integer();
  }
  if (is_object() && other.is_object()) {
    // In any order.
    return size() == other.size() && std::ranges::all_of(items(), [&](const Member& member) {
             const Json* const found = other.find(member.key);
             return found != nullptr && *found == member.value;
           });
  }
  if (is_array() && other.is_array()) return std::equal(begin(), end(), other.begin(), other.end());
  if (is_string() && other.is_string()) return text() == other.text();
  if (is_boolean() && other.is_boolean()) return boolean() == other.boolean();
  return is_null() && other.is_null();
}

}  // namespace harness
