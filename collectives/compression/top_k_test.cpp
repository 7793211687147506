#include "collectives/compression/algorithms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace collectives {
namespace {

// Returns the top k by a full sort: NaN first, then by magnitude, then by lower index.
std::vector<std::uint32_t> by_sorting(const std::vector<float>& values, std::int64_t k) {
  std::vector<std::uint32_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 0u);
  const auto rank = [&](std::uint32_t i) {
    return std::isnan(values[i]) ? std::numeric_limits<double>::max() : std::abs(double{values[i]});
  };
  std::stable_sort(indices.begin(), indices.end(), [&](std::uint32_t a, std::uint32_t b) {
    const bool nan_a = std::isnan(values[a]), nan_b = std::isnan(values[b]);
    return nan_a != nan_b ? nan_a : rank(a) > rank(b);
  });
  indices.resize(static_cast<std::size_t>(k));
  std::sort(indices.begin(), indices.end());
  return indices;
}

void check(const std::vector<float>& values, std::int64_t k, const char* what) {
  std::vector<std::uint32_t> got(static_cast<std::size_t>(k));
  select_top_k(values.data(), std::ssize(values), k, got.data());
  EXPECT_EQ(got, by_sorting(values, k)) << what << ", k " << k << " of " << values.size();
}

std::vector<float> normal(std::int64_t count) {
  std::mt19937 generator(7);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

TEST(SelectTopK, MatchesSorting) {
  for (const std::int64_t count : {1, 2, 31, 33, 1009, 50'021})
    for (const std::int64_t k : {1, 2, 16, 500, 20'000, 50'021})
      if (k <= count) check(normal(count), k, "normal");
}

TEST(SelectTopK, TakesTheLowerIndicesOfEqualMagnitudes) {
  std::vector<float> values = normal(50'021);
  for (float& value : values) value = std::round(2 * value);
  for (const std::int64_t k : {1, 3, 400, 30'000}) check(values, k, "many equal");
  check(std::vector<float>(20'000, 0.0f), 5, "zeros");
}

// The sample contains none of the large values, or only large values. Selection is then slower but
// correct.
TEST(SelectTopK, IsRightIfTheSampleMisleads) {
  std::vector<float> hidden(65'536, 1.0f), found(65'536, 1.0f);
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const bool sampled = i % 15 == 0;  // 65536 / 4096 = 16, made odd
    (sampled ? found : hidden)[i] = 100.0f + static_cast<float>(i % 1000);
  }
  for (const std::int64_t k : {10, 5000, 30'000}) {
    check(hidden, k, "hidden from the sample");
    check(found, k, "only where the sample looks");
  }
}

TEST(SelectTopK, TakesNanFirst) {
  std::vector<float> values = normal(20'011);
  values[70] = -std::numeric_limits<float>::infinity();
  values[19'000] = std::numeric_limits<float>::quiet_NaN();
  values[19'001] = -std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t k : {1, 2, 3, 100}) check(values, k, "not finite");
}

}  // namespace
}  // namespace collectives
