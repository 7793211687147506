#pragma once
// Reads the two languages of configurations into one config by one table.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suite/configuration/assignments.h"
#include "suite/configuration/keys.h"
#include "suite/files/json_leaves.h"

namespace suite::configuration {

// A key that was given but has no effect.
struct Ignored {
  std::string key, value, origin, why;
};

// The results of reading in addition to the fields.
struct Notes {
  bool ignore_unknown = false;  // report refused keys as warnings
  std::vector<std::string> warnings{};
  std::vector<std::pair<const Key*, Origin>> automatic{};  // keys that are "auto"
  std::vector<Ignored> ignored{};

  // Throws harness::UsageError unless ignore_unknown.
  void refuse(const std::string& what);
  // Handles a key without a field by its effect. said: its value for messages.
  void without_field(const Key& key, const std::string& said, const Origin& origin);
};

// Reads DeepSpeed's keys. Throws harness::UsageError naming the file and the key.
void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves,
                    TrainingConfig& config, Assignments& said, Notes& notes);

// Reads Megatron-LM's arguments: "--hidden-size 1024 --fp16 --lr=6e-5". Throws as above.
void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   TrainingConfig& config, Assignments& said, Notes& notes);
// Reads a file of arguments: words between blanks, shell quotes, comments that start with #.
std::vector<std::string> read_words(const std::string& path);
std::vector<std::string> words_of(const std::string& file, std::string_view text);

// Reads the value of an axis of the step units. Throws as above.
void read_axis(const std::string& axis, const std::string& text, TrainingConfig& config,
               Assignments& said);
std::string axis_text(const Key& key, TrainingConfig& config);  // the value in case names

// Sets the options of Muon that no source specifies. Changes nothing with other optimizers.
// DeepSpeed's Muon is Jordan's, and its only option is the momentum. Megatron-LM's has all options.
void set_muon_defaults(TrainingConfig& config, Assignments& said, bool deepspeed);

}  // namespace suite::configuration
