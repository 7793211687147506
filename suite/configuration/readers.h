#pragma once
// The two languages that a configuration comes in, read into the same config by the same table.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suite/configuration/assignments.h"
#include "suite/configuration/keys.h"
#include "suite/files/json_leaves.h"

namespace suite::configuration {

// A key that was given and is not in force.
struct Ignored {
  std::string key, value, origin, why;
};

// What reading leaves behind besides the fields.
struct Notes {
  bool ignore_unknown = false;  // what is refused becomes a warning
  std::vector<std::string> warnings{};
  std::vector<std::pair<const Key*, Origin>> automatic{};  // keys that are "auto"
  std::vector<Ignored> ignored{};

  // Throws harness::UsageError unless ignore_unknown.
  void refuse(const std::string& what);
  // A key without a field, as its effect says. said: its value for messages.
  void without_field(const Key& key, const std::string& said, const Origin& origin);
};

// DeepSpeed's. Throws harness::UsageError naming the file and the key.
void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves,
                    TrainingConfig& config, Assignments& said, Notes& notes);

// Megatron-LM's, as one would type them: "--hidden-size 1024 --fp16 --lr=6e-5". Throws as above.
void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   TrainingConfig& config, Assignments& said, Notes& notes);
// A file of them: words between blanks, quotes as in a shell, comments from # on.
std::vector<std::string> read_words(const std::string& path);
std::vector<std::string> words_of(const std::string& file, std::string_view text);

// Of an axis of the step units. Throws as above.
void read_axis(const std::string& axis, const std::string& text, TrainingConfig& config,
               Assignments& said);
std::string axis_text(const Key& key, TrainingConfig& config);  // as case names have it

}  // namespace suite::configuration
