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

}  // namespace
}  // namespace machine
