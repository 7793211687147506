#pragma once
// Every reader of files of users and other programs, as a function of bytes. Random damage and
// libFuzzer (scripts/fuzz) test these functions.
//
//   for (const Reader& reader : readers())
//     for (const std::string& seed : reader.seeds()) accepts(reader, seed);
//
// To add a reader, add a row to the table in readers.cpp.

#include <string>
#include <string_view>
#include <vector>

#include "suite/testing/file_bytes.h"

namespace suite::inputs {

struct Reader {
  std::string_view name;
  // Reads the bytes, and reads accepted bytes again in another way. Throws harness::UsageError if
  // it rejects the bytes, and std::logic_error if the two results differ.
  void (*read)(const testing::Folder& folder, const std::string& bytes);
  std::vector<std::string> (*seeds)();  // all accepted
};

const std::vector<Reader>& readers();

// Returns false if the reader rejects the bytes, in one line. Any other exception is a bug of the
// reader.
bool accepts(const Reader& reader, const std::string& bytes);

}  // namespace suite::inputs
