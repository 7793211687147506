#pragma once
// A section of a document that the code generates, between <!-- NAME: … --> and <!-- end of NAME
// -->.
//
//   expect_generated_section(SHARDMARK_PAGE, "counters", harness::counters_table());
//
// With SHARDMARK_WRITE_PAGES=1 in the environment the section is written instead of compared.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace machine::testing {

inline void expect_generated_section(const std::string& path, const std::string& name,
                                     const std::string& text) {
  std::ifstream in(path, std::ios::binary);
  std::string page{std::istreambuf_iterator<char>(in), {}};
  const std::size_t opened = page.find("<!-- " + name + ":");
  ASSERT_NE(opened, std::string::npos) << path << " has no section " << name;
  const std::size_t begin = page.find("-->\n", opened) + 4;
  const std::size_t end = page.find("<!-- end of " + name + " -->", begin);
  ASSERT_NE(end, std::string::npos) << path << ": section " << name << " has no end";
  const std::string expected = "\n" + text + "\n";
  if (!std::getenv("SHARDMARK_WRITE_PAGES")) {
    EXPECT_EQ(page.substr(begin, end - begin), expected)
        << "SHARDMARK_WRITE_PAGES=1 in the environment writes the section";
    return;
  }
  page.replace(begin, end - begin, expected);
  std::ofstream(path, std::ios::binary) << page;
}

}  // namespace machine::testing
