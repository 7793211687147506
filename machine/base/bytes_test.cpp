#include "machine/base/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

namespace machine {
namespace {

// Clang says that the pair of a map, whose key is const, can be copied as bytes. It does not say so
// of a pair whose first number is not const.
static_assert(!Plain<std::pair<const std::int8_t, double>> &&
              !Plain<std::pair<std::int8_t, double>>);

TEST(Bytes, MapsOfNumbersAreReadAsWritten) {
  const std::map<std::int8_t, double> times = {{-3, 0.5}, {7, 2.0}};
  EXPECT_EQ((decode<std::map<std::int8_t, double>>(encode(times))), times);
  const std::vector<std::map<std::int32_t, std::array<std::int64_t, 2>>> more = {{{1, {2, 3}}}, {}};
  EXPECT_EQ(
      (decode<std::vector<std::map<std::int32_t, std::array<std::int64_t, 2>>>>(encode(more))),
      more);
}

TEST(Bytes, OthersThanOneValueAreErrors) {
  const std::string text = encode(std::map<std::int32_t, double>{{1, 2.0}});
  EXPECT_THROW((decode<std::map<std::int32_t, double>>(text + ' ')), std::logic_error);
  EXPECT_THROW((decode<std::map<std::int32_t, double>>(text.substr(1))), std::logic_error);
}

}  // namespace
}  // namespace machine
