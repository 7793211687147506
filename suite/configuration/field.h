#pragma once
// A typed reference to a member of a TrainingConfig, and the values that it can be given.
//
//   const Field field(config.zero.stage);
//   field.set(3.0);        // throws std::bad_variant_access for another kind of value
//   field.text();          // "3"
//
// The room of an enumeration defines its names: `name` and a function that finds a value by its
// name.
//
//   Field::named<layers::fp8_format>(config.fp8.format).set("hybrid");

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "suite/files/json_leaves.h"

namespace suite::configuration {

enum class Kind : unsigned char { truth, whole, number, word, pair, list };
std::string_view name(Kind kind);  // "a whole number", for messages

class Field {
 public:
  template <class T>
  requires(!std::is_enum_v<T>) explicit Field(T& at) : at_(&at) {}
  // Find: returns the value of a name, or throws std::invalid_argument.
  template <auto Find, class T>
  static Field named(T& at) {
    static constexpr Names names{
        [](const void* from) { return std::string(name(*static_cast<const T*>(from))); },
        [](void* to, const std::string& text) { *static_cast<T*>(to) = Find(text); },
        [](void* to, const void* from) { *static_cast<T*>(to) = *static_cast<const T*>(from); }};
    return Field(Enumeration{&at, &names});
  }

  Kind kind() const;
  const void* address() const;
  void set(const Value& value) const;
  void copy(const Field& other) const;  // another reference to the same member
  Field of_pair(std::size_t index) const;
  std::string text() const;  // "5e-05", "cpu", "true"; "none" if empty

 private:
  struct Names {
    std::string (*text)(const void* from);
    void (*set)(void* to, const std::string& text);
    void (*copy)(void* to, const void* from);
  };
  struct Enumeration {
    void* at;
    const Names* names;
  };
  explicit Field(Enumeration at) : at_(at) {}

  std::variant<bool*, int*, std::int64_t*, std::uint64_t*, double*, std::string*,
               std::optional<bool>*, std::optional<int>*, std::optional<std::int64_t>*,
               std::array<double, 2>*, std::vector<int>*, Enumeration>
      at_;
};

// Returns the value of a text on a command line: 1, on and true are true; 4+2 is a list, and so is
// [4, 2]. Null: the text has another kind.
Value value_of(Kind kind, const std::string& text);

}  // namespace suite::configuration
