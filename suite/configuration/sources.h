#pragma once
// The two languages that a configuration comes in, read into the same fields.

#include <string>
#include <string_view>
#include <vector>

#include "suite/configuration/assignments.h"
#include "suite/configuration/deepspeed_keys.h"
#include "suite/configuration/json_leaves.h"

namespace suite::configuration {

// What reading leaves behind besides the fields.
struct Notes {
  bool ignore_unknown = false;  // what is not honoured becomes a warning, not an error
  std::vector<std::string> warnings;
  std::vector<std::pair<const Key*, Origin>> automatic;  // keys that are "auto"

  // Throws harness::UsageError unless ignore_unknown.
  void refuse(const std::string& what);
};

// DeepSpeed's. Throws harness::UsageError naming the file and the key.
void read_deepspeed(const std::string& file, const std::vector<Leaf>& leaves, Training& training,
                    Assignments& said, Notes& notes);

// Megatron-LM's, as one would type them: "--hidden-size 1024 --fp16 --lr=6e-5". Throws as above.
void read_megatron(const std::string& source, const std::vector<std::string>& words,
                   Training& training, Assignments& said, Notes& notes);
// A file of them: words between blanks, quotes as in a shell, comments from # on.
std::vector<std::string> read_words(const std::string& path);
std::vector<std::string> words_of(const std::string& file, std::string_view text);

// The fields that only Megatron-LM has a word for, with the word.
struct NamedField {
  std::string_view name;
  FieldOf field;
};
const std::vector<NamedField>& megatron_fields();
std::vector<std::string> megatron_names();

}  // namespace suite::configuration
