#pragma once
// A JSON file as the list of its values, each with the path of keys that leads to it
// ("zero_optimization.stage"). What a configuration can't mean is refused while it is read, with
// the file and the key: a key that stands twice, nesting deeper than any configuration's, numbers
// that no double holds. Comments are skipped, as DeepSpeed's reader does.

#include <string>
#include <string_view>
#include <vector>

namespace suite {

struct Leaf {
  enum class Kind : unsigned char { null, boolean, number, text, numbers, list, object };
  std::string path;
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text{};             // of a text, or as the number was written
  std::vector<double> numbers{};  // of a list that holds numbers only

  std::string described() const;  // "2.5", "'two'", "a list", for messages
};

// In the order of the file; an object comes before what is in it. Throws FileError
// (files/mapped_file.h).
std::vector<Leaf> read_leaves(const std::string& path);
// The same from text; `file` is named in messages.
std::vector<Leaf> leaves_of(const std::string& file, std::string_view json);

}  // namespace suite
