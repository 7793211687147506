// The documented counters are those that the harness and all units declare.

#include <gtest/gtest.h>

#include <string>

#include "harness/record/counters.h"
#include "suite/testing/file_bytes.h"

namespace suite {
namespace {

TEST(Counters, TheTableOfTheDocumentationIsTheRegistrys) {
  const std::string page = testing::read_bytes(SHARDMARK_RESULTS_README);
  const std::string begin = "<!-- counters: harness::counters_table() -->\n",
                    end = "<!-- end of counters -->";
  const std::size_t from = page.find(begin), to = page.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  EXPECT_EQ(page.substr(from + begin.size(), to - from - begin.size()),
            "\n" + harness::counters_table() + "\n");
}

}  // namespace
}  // namespace suite
