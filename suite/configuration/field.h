#pragma once
// A typed reference to a member of a TrainingConfig, and the values that it can be given.
//
//   const Field field(config.zero.stage);
//   field.set(3.0);        // throws std::bad_variant_access for another kind of value
//   field.text();          // "3"
//
// An enumeration has the names of its own room.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace suite::configuration {

// A null leaves the field as it is.
using Value = std::variant<std::monostate, bool, double, std::string, std::vector<double>>;

enum class Kind : unsigned char { truth, whole, number, word, pair };
std::string_view name(Kind kind);  // "a whole number", for messages

class Field {
 public:
  struct Type {
    Kind kind;
    std::string (*text)(const void* at);
    void (*set)(void* at, const Value& value);
    void (*copy)(void* at, const void* from);
  };

  template <class T>
  explicit Field(T& at) : at_(&at), type_(&type_of(static_cast<T*>(nullptr))) {}

  Kind kind() const { return type_->kind; }
  const void* address() const { return at_; }
  void set(const Value& value) const { type_->set(at_, value); }
  void copy(const Field& other) const { type_->copy(at_, other.at_); }  // of the same member
  std::string text() const { return type_->text(at_); }  // "5e-05", "cpu", "true"; "none" if empty

 private:
  template <class T>
  static const Type& type_of(const T*);

  void* at_;
  const Type* type_;
};

// What a text on a command line says for a field: 1, on and true are true. Null: it says nothing of
// this kind.
Value value_of(Kind kind, const std::string& text);

}  // namespace suite::configuration
