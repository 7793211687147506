#pragma once
// For the tests of what reads files (inputs/file_bytes.h): what a refusal says.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "suite/files/mapped_file.h"
#include "suite/testing/file_bytes.h"

namespace suite::testing {

// The one line that it throws; "accepted" if it throws nothing.
template <class Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

inline void expect_words(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
}

}  // namespace suite::testing
