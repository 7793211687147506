#pragma once
// Who said what: the fields of a Training are set through here, from several sources, and two that
// disagree about a field are an error that shows both.
//
//   Assignments said(training);
//   said.set(&training.zero.stage, 3.0, {"ds_config.json", "zero_optimization.stage"});
//   said.origin(&training.zero.stage);              // null: nobody; the default stands

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "suite/configuration/training.h"

namespace suite::configuration {

// A field of a Training, whose type is the type that the key has.
using Field = std::variant<bool*, std::int64_t*, double*, std::string*, std::optional<bool>*,
                           std::optional<std::int64_t>*, std::array<double, 2>*>;
using FieldOf = Field (*)(Training&);
const void* address(const Field& field);
std::string text(const Field& field);            // its value: "5e-05", "'cpu'", "none"
std::string_view type_name(const Field& field);  // "a whole number"

// What a source can say. A null leaves the field as it is.
using Value = std::variant<std::monostate, bool, double, std::string, std::vector<double>>;

// What a value must be: least and most of numbers; choices of texts, in capitals or not, and what
// else they are called.
struct Limits {
  double least = 0, most = 1e15;
  std::vector<std::string_view> choices{};
  std::vector<std::pair<std::string_view, std::string_view>> synonyms{};  // from, to
};

struct Origin {
  std::string source;  // a file, "command line", or how an unsaid value came about
  std::string key;     // as the source has it
  std::string text() const;
};

class Assignments {
 public:
  // Throws harness::UsageError: another type than the field's, beyond its limits (naming the
  // nearest choice), another value than somebody said before.
  void set(const Field& field, const Value& value, const Origin& origin, const Limits& limits = {});
  // The field has its value already: by whom it was given.
  void note(const Field& field, const Origin& origin);
  const Origin* origin(const void* field) const;
  bool said(const void* field) const { return origin(field) != nullptr; }

 private:
  struct Said {
    Origin origin;
    std::string value;
  };
  void remember(const Field& field, const std::string& before, const Origin& origin);
  std::map<const void*, Said> said_;
};

}  // namespace suite::configuration
