#pragma once
// A JSON value. nlohmann/json reads and writes its text, in json.cpp only: the templates of
// nlohmann cost each source that includes them several seconds of compiling.
//
//   Json run{{"schema", "shardmark-plan/1"}, {"rows", Json::array()}};
//   run["rows"].push_back({{"rank", 0}, {"seconds", 0.5}});
//   const std::string text = run.dump(2);
//   const double seconds = Json::parse(text).at("rows")[0].value("seconds", 0.0);
//
// Members keep their order. A braced list is an object if each element is a pair of a text and a
// value, else an array.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace harness {

// Text that is not JSON, a member that is missing, or a value of another type.
class JsonError : public std::runtime_error {
 public:
  enum class Kind { syntax, number_too_large, too_deep, missing, type };
  JsonError(Kind kind, const std::string& text, std::size_t byte = 0)
      : std::runtime_error(text), kind(kind), byte(byte) {}
  Kind kind;
  std::size_t byte;  // of the text, where its syntax is wrong
};

class Json {
 public:
  struct Member;
  static constexpr int most_levels = 500;

  Json();
  Json(std::nullptr_t) : Json() {}
  template <std::same_as<bool> T>
  Json(T value) : Json() {
    set(value);
  }
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value) : Json() {
    if constexpr (std::is_signed_v<T>)
      set(static_cast<std::int64_t>(value));
    else
      set(static_cast<std::uint64_t>(value));
  }
  template <std::floating_point T>
  Json(T value) : Json() {
    set(static_cast<double>(value));
  }
  Json(const char* text);
  Json(std::string_view text);
  Json(std::string text);
  template <class T>
  Json(const std::vector<T>& values) : Json(array()) {
    for (const T& value : values) push_back(Json(value));
  }
  template <class K, class T, class Order>
  Json(const std::map<K, T, Order>& values) : Json(object()) {
    for (const auto& [key, value] : values) (*this)[key] = Json(value);
  }
  Json(std::initializer_list<Json> list);

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json array();
  static Json array(std::initializer_list<Json> list);
  static Json object();

  // Throws JsonError.
  static Json parse(std::string_view text, int most_levels = Json::most_levels);
  // Returns null if the text is not JSON.
  static Json parse_or_null(std::string_view text);
  // Returns one line, or lines indented by `indent`. Bytes that are not UTF-8 become U+FFFD.
  std::string dump(int indent = -1) const;

  bool is_null() const;
  bool is_boolean() const;
  bool is_number() const;
  bool is_number_integer() const;   // of either sign
  bool is_number_unsigned() const;  // not negative
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  // Returns the value as a T: bool, a number, text, Json, or a vector or map of them. Throws
  // JsonError.
  template <class T>
  T get() const;
  template <class T>
  void get_to(T& value) const {
    value = get<T>();
  }
  const std::string& text() const;
  const char* type_name() const;

  // ---- objects

  // A new member if there is none. A null value becomes an object.
  Json& operator[](std::string_view key);
  const Json& operator[](std::string_view key) const { return at(key); }
  const Json& at(std::string_view key) const;
  const Json& at(std::nullptr_t) const = delete;  // at(0): elements are found by [0]
  const Json* find(std::string_view key) const;   // null: there is none
  // Returns the value at a path of keys and indices: "/ranks/0/host".
  const Json* find_path(std::string_view path) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  template <class T>
  T value(std::string_view key, const T& otherwise) const {
    const Json* const found = find(key);
    return found != nullptr ? found->get<T>() : otherwise;
  }
  std::string value(std::string_view key, const char* otherwise) const {
    return value(key, std::string(otherwise));
  }
  void erase(std::string_view key);
  // Sets the members of the other one.
  void update(const Json& other);
  std::span<const Member> items() const;
  std::span<Member> items();

  // ---- arrays. A null value becomes an array.

  void push_back(Json value);
  void pop_back();
  Json& operator[](std::size_t index);
  const Json& operator[](std::size_t index) const;
  Json& operator[](int index) { return (*this)[static_cast<std::size_t>(index)]; }
  const Json& operator[](int index) const { return (*this)[static_cast<std::size_t>(index)]; }
  const Json& back() const { return (*this)[size() - 1]; }
  Json* begin();
  Json* end();
  const Json* begin() const;
  const Json* end() const;

  // Returns the number of elements of an array or of members of an object. Null is empty.
  std::size_t size() const;
  bool empty() const { return size() == 0; }

  friend bool operator==(const Json& a, const Json& b) { return a.equals(b); }

 private:
  using Array = std::vector<Json>;
  using Object = std::vector<Member>;
  void set(bool value);
  void set(std::int64_t value);
  void set(std::uint64_t value);
  void set(double value);
  bool boolean() const;
  std::uint64_t integer() const;  // a negative one in two's complement
  double number() const;
  bool equals(const Json& other) const;
  [[noreturn]] void fail(const char* expected) const;
  Array& elements();

  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_;
};

struct Json::Member {
  std::string key;
  Json value;
};

template <class T>
T Json::get() const {
  if constexpr (std::same_as<T, Json>) {
    return *this;
  } else if constexpr (std::same_as<T, bool>) {
    return boolean();
  } else if constexpr (std::integral<T>) {
    return static_cast<T>(integer());
  } else if constexpr (std::floating_point<T>) {
    return static_cast<T>(number());
  } else if constexpr (std::same_as<T, std::string>) {
    return text();
  } else if constexpr (requires { typename T::mapped_type; }) {
    T all;
    for (const auto& [key, value] : items())
      all.emplace(key, value.template get<typename T::mapped_type>());
    return all;
  } else {
    T all;
    for (const Json& value : *this) all.push_back(value.get<typename T::value_type>());
    return all;
  }
}

}  // namespace harness
