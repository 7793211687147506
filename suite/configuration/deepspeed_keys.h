#pragma once
// Every key of DeepSpeed's ds_config.json, in one table: the field that it sets, what its values
// must be, or why it is not honoured and what comes nearest. Defaults are Training's own. Keys that
// users paste though DeepSpeed's code has none of the name are in it too.

#include <span>
#include <string_view>
#include <vector>

#include "suite/configuration/assignments.h"

namespace suite::configuration {

struct Key {
  std::string_view path;
  FieldOf field = nullptr;  // null: not honoured
  Limits limits{};
  std::string_view since{};  // where the default depends on DeepSpeed's version: what was before
  // Not honoured, but taken where the value asks for nothing: "false|0"; "*" is any value. A row
  // that names a section asks for nothing where its `enabled` is false.
  std::string_view inert{};
  std::string_view why{}, instead{};
};
std::span<const Key> deepspeed_keys();
const Key* find_key(std::string_view path);
bool is_section(std::string_view path);  // keys lie below it

// Other names: older ones and ones that other tools write. `when_true`: a switch that stands for
// this text (and for "none" when false).
struct Alias {
  std::string_view from, to, when_true{};
  bool deprecated = true;
};
std::span<const Alias> deepspeed_aliases();

// "did you mean 'zero_optimization.stage'?": the key meant by a path that is none, or empty. A key
// of that name in another section comes before one that is spelt alike.
std::string nearest_key(std::string_view path);

}  // namespace suite::configuration
