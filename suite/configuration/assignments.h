#pragma once
// Sets the fields of a TrainingConfig from several sources and records the source of each value.
// Two sources that disagree about a field are an error that shows both.
//
//   Assignments said;
//   said.set(Field(config.zero.stage), 3.0, {"ds_config.json", "zero_optimization.stage"});
//   said.origin(&config.zero.stage);              // null: no source, the default applies

#include <map>
#include <string>

#include "suite/configuration/keys.h"

namespace suite::configuration {

struct Origin {
  std::string source;  // a file, "command line", or the derivation of the value
  std::string key;     // as the source writes it
  std::string text() const;
};

class Assignments {
 public:
  // Throws harness::UsageError for the wrong type, for a value outside the limits (naming the
  // nearest choice), and for a value that differs from an earlier source's. Null leaves the field
  // unchanged.
  void set(const Field& field, const Value& value, const Origin& origin, const Limits& limits = {});
  // Records the source of the value that the field already has.
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
