#pragma once
// A TOML file as the list of its values, like a JSON file (files/json_leaves.h). Each leaf has its
// line.

#include <string>
#include <string_view>
#include <vector>

#include "suite/files/json_leaves.h"

namespace suite {

// Returns the values by line, a table before its keys. file: its name in errors. Throws FileError
// (files/mapped_file.h) with line and column if the text is not valid TOML.
std::vector<Leaf> toml_leaves(const std::string& file, std::string_view toml);
// Returns a text in quotes, as a TOML file writes it.
std::string toml_text(const std::string& text);

}  // namespace suite
