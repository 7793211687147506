#pragma once
// Checks of error messages, for tests of file readers (file_bytes.h).

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "suite/files/mapped_file.h"
#include "suite/testing/file_bytes.h"

namespace suite::testing {

// Returns the error message, which must be one line, or "accepted".
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
