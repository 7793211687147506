#pragma once
// Every reader of what users and other programs write, as a function of bytes: what random damage
// and libFuzzer are let loose on (scripts/fuzz).
//
//   for (const Reader& reader : readers())
//     for (const std::string& seed : reader.seeds()) accepts(reader, seed);
//
// To add one: a row in the table in readers.cpp.

#include <string>
#include <string_view>
#include <vector>

#include "suite/testing/file_bytes.h"

namespace suite::inputs {

struct Reader {
  std::string_view name;
  // Reads the bytes, and what it accepts once more in another way; throws harness::UsageError for
  // what it refuses, std::logic_error where the two ways differ.
  void (*read)(const testing::Folder& folder, const std::string& bytes);
  std::vector<std::string> (*seeds)();  // all accepted
};

const std::vector<Reader>& readers();

// False when they were refused, in one line. Whatever else is thrown is a fault of the reader.
bool accepts(const Reader& reader, const std::string& bytes);

}  // namespace suite::inputs
