#pragma once
// The table of the keys of a training run, one row per key: the member of TrainingConfig that it
// sets, its names and synonyms, its limits, the keys that it needs or demands, its effect, and its
// treatment by `predict`. Axes and flags of the step units, both readers, the echo in the record,
// the planner and `predict` come from this table.
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
  std::string_view example{};  // of a text without choices: a value for tests, not the default
};

enum class Effect : unsigned char { honoured, planned, refused, ignored };

// A condition on other keys.
struct Needs {
  std::string_view what;
  bool (*met)(const TrainingConfig& config);
};

// Another word for a key: an older name, another tool's name, or a switch that selects a value.
struct Word {
  using Values = std::vector<std::pair<std::string_view, std::string_view>>;

  std::string_view from, to{};  // to: any name of a key; words() sets it to the row's
  Values values{};              // empty: the key's own values
  bool deprecated = false;
};
Word older(std::string_view from, Word::Values values = {});
// Returns a switch that selects a value: "false" for --no-….
Word selecting(std::string_view value, std::string_view from);

// How `predict` takes a key. A test gives every key other values and compares the predictions.
enum class Taken : unsigned char {
  counted,
  resolved,    // resolve() sets other keys from it
  unaffected,  // the prediction does not depend on it
  rejected     // all values but the default
};
struct Predicted {
  Taken taken = Taken::counted;
  std::string_view about{};  // what is counted, or the reason
};
// The words of the rows, and what keys of several files have in common.
namespace predicted {
constexpr Predicted counted(std::string_view about) { return {Taken::counted, about}; }
constexpr Predicted unaffected(std::string_view about) { return {Taken::unaffected, about}; }
constexpr Predicted rejected(std::string_view about) { return {Taken::rejected, about}; }
constexpr Predicted resolved{Taken::resolved, "they set keys above"};
constexpr Predicted numbers = unaffected("numbers: the same kernels run");
constexpr Predicted cluster_rates = unaffected("the cluster file has the rates");
constexpr Predicted of_experts =
    counted("by layers/experts/moe_cost.h, with the same number of rows for all experts");
constexpr Predicted offloaded = counted("copies, the update on the host, files");
}  // namespace predicted

struct Key {
  // "--lr", "optimizer.params.lr", "optimizer". At least one is set.
  std::string_view megatron{}, deepspeed{}, axis{};
  FieldOf field = nullptr;  // null: refused or ignored
  Predicted predicted{};    // of a key with a field
  Limits limits{};
  std::string_view since{};      // note on a default that differs between DeepSpeed's versions
  const Needs* needs = nullptr;  // if it is not met, the key has no effect
  // Conditions of values but the default. If one is not met, no step supports the configuration.
  std::vector<Needs> demands{};
  std::vector<Word> words{};  // other words for the key
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
  // Return the row with another word, and with another condition.
  Key also(Word word) &&;
  Key demanding(Needs condition) &&;
};
// Returns an honoured key that is not an axis. An empty name: the tool does not have the key.
Key row(std::string_view megatron, std::string_view deepspeed, FieldOf field, Predicted predicted,
        Limits limits = {}, const Needs* needs = nullptr);
// Returns an honoured key that is an axis. Megatron-LM has the name too if it starts with "--".
Key axis(std::string_view name, std::string_view deepspeed, FieldOf field, Predicted predicted,
         std::string_view about, Limits limits = {}, const Needs* needs = nullptr);
// The field of a row: AT(zero.stage), or of an enumeration NAMED(fp8.format, layers::fp8_format).
#define AT(member) (+[](TrainingConfig& config) { return Field(config.member); })
#define NAMED(member, find) \
  (+[](TrainingConfig& config) { return Field::named<find>(config.member); })

std::span<const Key> keys();  // its axes are in the order of case names
// Returns null for an unknown name. Finds a key by one kind of name,
// find_key(&Key::deepspeed, "zero_optimization.stage"), or by any name.
const Key* find_key(std::string_view Key::*language, std::string_view name);
const Key* find_key(std::string_view name);

std::span<const Word> words();  // of the rows, and of sections
// Throws std::invalid_argument for a key whose value is not its default if a demand is not met.
void check_demands(const TrainingConfig& config);

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
