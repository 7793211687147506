#pragma once
// What Google Benchmark's `context` says about the machine and the program.

#include <string>
#include <string_view>

namespace harness {

// The lines of a JSON object from "date" to "shardmark_version", without the braces.
std::string machine_context(std::string_view schema);

}  // namespace harness
