#pragma once
// The table of the keys of a training run, one row a key: the member of TrainingConfig that it
// sets, its names, its limits, and what becomes of it. Axes and flags of the step units, both
// readers, the echo in the record, the planner and the documentation come from this table.
//
//   const Key* key = find_key("zero_optimization.stage");   // or "--zero-stage", or "zero-stage"
//   key->field(config).set(3.0);
//
// To add a key: its member, its row, its use, its test. What a key becomes:
//   honoured   by the training step and by the planner
//   planned    counted by the planner; a step takes it if `in_step`
//   refused    an error that says why and what comes nearest, but for what `inert` lists
//   ignored    taken with a warning, as it changes nothing that is measured; recorded as ignored
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

// What a value must be: least and most of numbers; choices of texts, in capitals or not, and what
// else they are called.
struct Limits {
  double least = 0, most = 1e15;
  std::vector<std::string_view> choices{};
  std::vector<std::pair<std::string_view, std::string_view>> synonyms{};  // from, to
};

enum class Effect : unsigned char { honoured, planned, refused, ignored };
std::string_view name(Effect effect);

// The other choices without which a key has no effect.
struct Needs {
  std::string_view what;
  bool (*met)(const TrainingConfig& config);
};

struct Key {
  // "--lr", "optimizer.params.lr", "optimizer". At least one of them.
  std::string_view megatron{}, deepspeed{}, axis{};
  FieldOf field = nullptr;  // null: refused or ignored
  Limits limits{};
  std::string_view since{};  // of a default that depends on DeepSpeed's version: what was before
  const Needs* needs = nullptr;
  Effect effect = Effect::honoured;
  // Values that ask for nothing: "false|0"; "*" is any value. Of a section: its `enabled` is false.
  std::string_view inert{};
  std::string_view why{}, instead{};
  bool (*in_step)(const TrainingConfig& config) = nullptr;  // planned: whether a step takes it
  std::string_view unset{};  // of an optional on the command line: "model", "schedule"
  std::string_view about{};  // of an axis, for --help

  std::string_view name() const { return !deepspeed.empty() ? deepspeed : command_name(); }
  std::string_view command_name() const { return !megatron.empty() ? megatron : axis; }
  bool is_switch() const;                // of a command line: takes no value
  bool takes(const Value& value) const;  // is it among those of `inert`?
};

std::span<const Key> keys();  // axes among them in the order that case names have
// Null: there is none. By one of its names, find_key(&Key::deepspeed, "zero_optimization.stage"),
// or by any.
const Key* find_key(std::string_view Key::*language, std::string_view name);
const Key* find_key(std::string_view name);

// Other words for a key: older ones, those of other tools, and switches that stand for a value.
struct Word {
  std::string_view from, to;                                            // to: any name of a key
  std::vector<std::pair<std::string_view, std::string_view>> values{};  // none: as the key's own
  bool deprecated = false;
};
std::span<const Word> words();

// Of a path of DeepSpeed's.
bool is_section(std::string_view path);  // keys lie below it
// "did you mean 'zero_optimization.stage'?": the key meant by a path that is none, or empty. A key
// of that name in another section comes before one that is spelt alike.
std::string nearest_key(std::string_view path);
std::vector<std::string> megatron_names();

// The same table for readers, in Markdown.
std::string keys_markdown();

// The rows by subject (…_keys.cpp).
std::vector<Key> model_keys();
std::vector<Key> step_keys();
std::vector<Key> zero_keys();
std::vector<Key> refused_keys();
std::vector<Key> ignored_keys();

}  // namespace suite::configuration
