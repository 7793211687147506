#include "suite/testing/inputs/readers.h"

#include <gtest/gtest.h>

namespace suite::inputs {

void PrintTo(const Reader& reader, std::ostream* out) { *out << reader.name; }

namespace {

class Readers : public ::testing::TestWithParam<Reader> {};

TEST_P(Readers, AcceptTheirSeeds) {
  for (const std::string& seed : GetParam().seeds()) EXPECT_TRUE(accepts(GetParam(), seed));
  EXPECT_FALSE(accepts(GetParam(), "x [" + std::string(200, 'y')));
}

// Flips bits, removes bytes and replaces numbers. A reader rejects the result in one line, or reads
// it as another decoder does.
TEST_P(Readers, AcceptOrRejectDamagedFiles) {
  const Reader& reader = GetParam();
  const std::vector<std::string> seeds = reader.seeds();
  std::mt19937_64 random(20261122);
#ifdef __SANITIZE_ADDRESS__
  constexpr int trials = 300;  // each byte is checked
#else
  constexpr int trials = 1000;
#endif
  int accepted = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const std::string bytes = testing::damaged(seeds[random() % seeds.size()], random);
    try {
      accepted += accepts(reader, bytes);
    } catch (const std::exception& error) {
      const std::string kept = ::testing::TempDir() + std::string(reader.name) + ".input";
      testing::write_bytes(kept, bytes);
      FAIL() << "trial " << trial << ", kept as " << kept << ": " << error.what();
    }
  }
  EXPECT_GT(accepted, trials / 200);
  EXPECT_LT(accepted, trials - 50);
}

INSTANTIATE_TEST_SUITE_P(All, Readers, ::testing::ValuesIn(readers()),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace suite::inputs
