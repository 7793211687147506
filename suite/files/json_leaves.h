#pragma once
// A JSON file as the list of its values, each with its path of keys ("zero_optimization.stage").
// Reading rejects, with the file and the key: a key that is given twice, nesting deeper than any
// configuration's, numbers that no double holds. Comments are skipped, as DeepSpeed's reader does.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace suite {

// The value of a key; monostate: null.
using Value = std::variant<std::monostate, bool, double, std::string, std::vector<double>>;
// Returns the value for messages: "'two'", "2.5", "a list of 3 numbers".
std::string text(const Value& value);

struct Leaf {
  enum class Kind : unsigned char { value, list, object };  // list: not only numbers
  std::string path;
  Kind kind = Kind::value;
  Value value{};
  std::string written{};  // the text of a number in the file
  std::size_t line = 0;   // of a TOML file (predict/toml_leaves.h)

  std::string described() const;  // "2.5", "'two'", "a list", for messages
};

// Returns the values in the order of the file, an object before its keys. Throws FileError
// (files/mapped_file.h).
std::vector<Leaf> read_leaves(const std::string& path);
// Returns those of a text. file: its name in errors.
std::vector<Leaf> leaves_of(const std::string& file, std::string_view json);

}  // namespace suite
