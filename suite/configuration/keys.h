#pragma once
// The table of the keys of a training run, one row a key: the member of TrainingConfig that it
// sets, its names, its limits and its effect. Axes and flags of the step units, both readers, the
// echo in the record and the planner come from this table.
//
//   const Key* key = find_key("zero_optimization.stage");   // or "--zero-stage", or "zero-stage"
//   key->field(config).set(3.0);
//
// To add a key, add its member, row, use and test. Effects:
//   honoured   used by the training step and by the planner
//   planned    counted by the planner; a step supports it if `in_step`
//   refused    an error with the reason and the nearest key, except for the values in `inert`
//   ignored    accepted with a warning, because no measurement depends on it; recorded as ignored
// A key whose `needs` are not met is ignored in the same way.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suite/configuration/field.h"
#include "suite/configuration/training_config.h"

namespace suite::configuration {

using FieldOf = Field (*)(TrainingConfig&);

// Valid values: the range of a number, the choices of a text (case is ignored) and the synonyms of
// the choices.
struct Limits {
  double least = 0, most = 1e15;
  std::vector<std::string> choices{};
  std::vector<std::pair<std::string_view, std::string_view>> synonyms{};  // from, to
  // Known values that are not supported, and the reason.
  std::vector<std::pair<std::string_view, std::string_view>> refused{};
};

enum class Effect : unsigned char { honoured, planned, refused, ignored };

// A condition on other keys. If it is not met, the key has no effect.
struct Needs {
  std::string_view what;
  bool (*met)(const TrainingConfig& config);
};

struct Key {
  // "--lr", "optimizer.params.lr", "optimizer". At least one is set.
  std::string_view megatron{}, deepspeed{}, axis{};
  FieldOf field = nullptr;  // null: refused or ignored
  Limits limits{};
  std::string_view since{};  // note on a default that differs between DeepSpeed's versions
  const Needs* needs = nullptr;
  Effect effect = Effect::honoured;
  // Values that request nothing: "false|0"; "*": any value. A section is off if `enabled` is false.
  std::string_view inert{};
  std::string_view why{}, instead{};
  bool (*in_step)(const TrainingConfig& config) = nullptr;  // planned: whether a step supports it
  std::string_view unset{};  // the word on the command line for no value: "model", "schedule"
  // Divides a list of values on the command line. Null: at each comma.
  std::vector<std::string> (*divide)(std::string_view list) = nullptr;
  std::string_view about{};  // of an axis, for --help

  std::string_view name() const { return !deepspeed.empty() ? deepspeed : command_name(); }
  std::string_view command_name() const { return !megatron.empty() ? megatron : axis; }
  bool takes(const Value& value) const;  // whether it is one of `inert`
};
// Returns an honoured key that is not an axis. An empty name: the tool does not have the key.
Key row(std::string_view megatron, std::string_view deepspeed, FieldOf field, Limits limits = {},
        const Needs* needs = nullptr);
// Returns an honoured key that is an axis. Megatron-LM has the name too if it starts with "--".
Key axis(std::string_view name, std::string_view deepspeed, FieldOf field, std::string_view about,
         Limits limits = {}, const Needs* needs = nullptr);
// The field of a row: AT(zero.stage).
#define AT(member) (+[](TrainingConfig& config) { return Field(config.member); })

std::span<const Key> keys();  // its axes are in the order of case names
// Returns null for an unknown name. Finds a key by one kind of name,
// find_key(&Key::deepspeed, "zero_optimization.stage"), or by any name.
const Key* find_key(std::string_view Key::*language, std::string_view name);
const Key* find_key(std::string_view name);

// Another word for a key: an older name, another tool's name, or a switch that selects a value.
struct Word {
  std::string_view from, to;  // to: any name of a key
  std::vector<std::pair<std::string_view, std::string_view>>
      values{};  // empty: the key's own values
  bool deprecated = false;
};
std::span<const Word> words();

// Returns whether DeepSpeed has keys below this path.
bool is_section(std::string_view path);
// Returns the key that an unknown path probably means, or empty. A key of the same name in another
// section comes before a key of a similar name.
std::string nearest_key(std::string_view path);
std::vector<std::string> megatron_names();

// Return the rows of one subject each (…_keys.cpp).
std::vector<Key> model_keys();
std::vector<Key> sparse_keys();  // of the model, too
std::vector<Key> step_keys();
std::vector<Key> zero_keys();
std::vector<Key> unsupported_keys();

}  // namespace suite::configuration
