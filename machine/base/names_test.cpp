#include "machine/base/names.h"

#include <gtest/gtest.h>

namespace machine {
namespace {

TEST(Names, NearestHasALimit) {
  EXPECT_EQ(nearest("gelu", {"relu", "softmax"}), "relu");
  EXPECT_EQ(nearest("abc", {"xyz"}), "");
  EXPECT_EQ(nearest("reduce", {"broadcast", "all_reduce"}), "all_reduce");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(nearest(std::string(100'000'000, 'x'), {"all_reduce"}), "");  // returns at once
}

TEST(Names, UnknownNamesTheNearestOrTheFirst) {
  EXPECT_EQ(unknown("unit", "gelu", {"relu", "softmax"}),
            "unknown unit 'gelu'; did you mean 'relu'?");
  EXPECT_EQ(unknown("unit", "abc", {"relu", "softmax"}),
            "unknown unit 'abc'; known: relu, softmax");
  std::vector<std::string> many;
  for (int i = 0; i < 100; ++i) many.push_back(std::to_string(i));
  const std::string text = unknown("case", "abc", many);
  EXPECT_TRUE(text.starts_with("unknown case 'abc'; known: 0, 1, 2,")) << text;
  EXPECT_TRUE(text.ends_with(" 59, and 40 more")) << text;
}

}  // namespace
}  // namespace machine
