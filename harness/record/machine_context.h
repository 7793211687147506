#pragma once
// The machine and the program, in the form of Google Benchmark's `context`.

#include <string>
#include <string_view>

namespace harness {

// The lines of a JSON object from "date" to "shardmark_version", without the braces.
std::string machine_context(std::string_view schema);

}  // namespace harness
