#include "machine/device/selection/selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

using Indices = std::vector<std::uint32_t>;

// Returns the top k by a full sort: NaN first, then by magnitude, then by lower index.
Indices by_sorting(const std::vector<float>& values, std::int64_t k) {
  Indices indices(values.size());
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

Indices at_least(const std::vector<float>& values, double least) {
  Indices indices;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::abs(double{values[i]}) >= least) indices.push_back(static_cast<std::uint32_t>(i));
  return indices;
}

std::vector<float> normal(std::int64_t count) {
  std::mt19937 generator(7);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

class Selections : public OnDevice {
 protected:
  // Takes the chosen elements of values, which are `expected`, and adds them to their rest.
  void expect_taken(Selection& selection, const Tensor& values, const Indices& expected) {
    ASSERT_EQ(from_device<std::int32_t>(selection.chosen())[0], std::ssize(expected));
    const auto before = from_device<float>(values);
    const Indices noise(expected.size() + 1, 0x5a5a5a5a);
    const Tensor all_indices = on_device(Dtype::uint32, noise);
    const Tensor all_taken = on_device(Dtype::uint32, noise);
    const Tensor indices = all_indices.slice(0, {std::ssize(expected)});
    const Tensor taken = all_taken.slice(0, {std::ssize(expected)});
    selection.take(values, indices, taken);
    EXPECT_EQ(from_device<std::uint32_t>(all_indices).back(), noise[0]) << "wrote too many";
    EXPECT_EQ(from_device<std::uint32_t>(all_taken).back(), noise[0]) << "wrote too many";

    auto got = from_device<std::uint32_t>(indices);
    const auto bits = from_device<std::uint32_t>(taken);
    const auto rest = from_device<float>(values);
    std::vector<bool> is_taken(before.size());
    for (std::size_t j = 0; j < got.size(); ++j) {
      ASSERT_LT(got[j], before.size());
      is_taken[got[j]] = true;
      EXPECT_EQ(bits[j], std::bit_cast<std::uint32_t>(before[got[j]]));
    }
    for (std::size_t i = 0; i < before.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(rest[i]),
                is_taken[i] ? 0u : std::bit_cast<std::uint32_t>(before[i]))
          << i;
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, expected);

    selection.add(indices, taken, values);
    const auto again = from_device<float>(values);
    for (std::size_t i = 0; i < before.size(); ++i)
      ASSERT_TRUE(again[i] == before[i] || std::isnan(before[i])) << i;
  }

  void expect_largest(const std::vector<float>& values, std::int64_t k) {
    SCOPED_TRACE(testing::Message() << k << " of " << values.size());
    const auto selection =
        make_selection(*device_, std::ssize(values), Choice::largest, Category::buffers);
    const Tensor tensor = on_device(Dtype::float32, values);
    selection->choose_largest(tensor, k);
    expect_taken(*selection, tensor, by_sorting(values, k));
  }
};

TEST_P(Selections, OfTheLargestMatchSorting) {
  for (const std::int64_t count : {1, 2, 31, 33, 1009, 50'021})
    for (const std::int64_t k : {1, 2, 16, 500, 20'000, 50'021})
      if (k <= count) expect_largest(normal(count), k);
}

TEST_P(Selections, TakeTheLowerIndicesOfEqualMagnitudes) {
  std::vector<float> values = normal(50'021);
  for (float& value : values) value = std::round(2 * value);
  for (const std::int64_t k : {1, 3, 400, 30'000, 45'000}) expect_largest(values, k);
  expect_largest(std::vector<float>(20'000, 0.0f), 5);
}

// The sample contains none of the large values, or only large values. Selection is then slower but
// correct.
TEST_P(Selections, AreRightIfTheSampleMisleads) {
  std::vector<float> hidden(65'536, 1.0f), found(65'536, 1.0f);
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const bool sampled = i % 15 == 0;  // 65536 / 4096 = 16, made odd
    (sampled ? found : hidden)[i] = 100.0f + static_cast<float>(i % 1000);
  }
  for (const std::int64_t k : {10, 5000, 30'000}) {
    expect_largest(hidden, k);
    expect_largest(found, k);
  }
}

TEST_P(Selections, OfTheLargestTakeNanFirst) {
  std::vector<float> values = normal(20'011);
  values[70] = -inf;
  values[19'000] = nan;
  values[19'001] = -nan;
  for (const std::int64_t k : {1, 2, 3, 100}) expect_largest(values, k);
}

// The counts of more than 2048 blocks are summed by a block of threads instead of a warp.
TEST_P(Selections, OfManyBlocksKeepTheirPlaces) {
  constexpr std::int64_t count = 2049 * 1024 + 5;
  std::vector<float> values(count, 0.5f);
  Indices expected;
  for (std::int64_t i = 100; i < count; i += 4099) {
    values[static_cast<std::size_t>(i)] = i % 2 == 0 ? 3.0f : -3.0f;
    expected.push_back(static_cast<std::uint32_t>(i));
  }
  const Tensor tensor = on_device(Dtype::float32, values);
  const auto selection = make_selection(*device_, count, Choice::above, Category::buffers);
  selection->choose_at_least(tensor, 3.0f);
  expect_taken(*selection, tensor, expected);
}

TEST_P(Selections, AboveABoundMatchAScan) {
  for (const std::int64_t count : {1, 31, 1024, 1025, 5003}) {
    SCOPED_TRACE(count);
    const std::vector<float> values = normal(count);
    const auto selection = make_selection(*device_, count, Choice::above, Category::buffers);
    const Tensor tensor = on_device(Dtype::float32, values);
    for (const float least : {0x1p-149f, 0.01f, 1.5f, std::abs(values[0]), 100.0f}) {
      selection->choose_at_least(tensor, least);
      expect_taken(*selection, tensor, at_least(values, double{least}));
    }
    double squares = 0;
    for (const float value : values) squares += std::pow(double{value}, 2);
    for (const double deviations : {1e-3, 1.0, 2.5, 30.0}) {
      selection->choose_deviations(tensor, deviations);
      const double least = deviations * std::sqrt(squares / static_cast<double>(count));
      expect_taken(*selection, tensor, at_least(values, double{static_cast<float>(least)}));
    }
  }
}

TEST_P(Selections, BySignMoveMagnitudesByAStep) {
  const std::vector<float> values = normal(3001);
  constexpr float step = 1.25f;
  const Indices expected = at_least(values, double{step});
  const auto selection = make_selection(*device_, 3001, Choice::above, Category::buffers);
  const Tensor tensor = on_device(Dtype::float32, values);
  selection->choose_at_least(tensor, step);
  ASSERT_EQ(from_device<std::int32_t>(selection->chosen())[0], std::ssize(expected));
  const Tensor words = on_device(Dtype::uint32, Indices(expected.size()));
  selection->take_signs(tensor, step, words);
  const Tensor sum = on_device(Dtype::float32, std::vector<float>(values.size()));
  selection->add_signs(words, step, sum);
  const auto got = from_device<std::uint32_t>(words);
  const auto rest = from_device<float>(tensor), sent = from_device<float>(sum);
  for (std::size_t j = 0; j < expected.size(); ++j)
    EXPECT_EQ(got[j], 2 * expected[j] + (values[expected[j]] < 0 ? 1 : 0));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float by = std::abs(values[i]) < step ? 0 : std::copysign(step, values[i]);
    ASSERT_EQ(sent[i], by) << i;
    ASSERT_EQ(rest[i], values[i] - by) << i;
  }
}

// No bound describes such values. They are neither taken nor left in a residual.
TEST_P(Selections, AboveABoundRefuseValuesThatAreNotFinite) {
  for (const float bad : {inf, -inf, nan}) {
    std::vector<float> values = normal(2500);
    values[2000] = bad;
    const auto selection = make_selection(*device_, 2500, Choice::above, Category::buffers);
    const Tensor tensor = on_device(Dtype::float32, values);
    const Tensor words = on_device(Dtype::uint32, Indices{7});
    for (const bool deviations : {false, true}) {
      if (deviations)
        selection->choose_deviations(tensor, 1);
      else
        selection->choose_at_least(tensor, 1);
      EXPECT_EQ(from_device<std::int32_t>(selection->chosen())[0], Selection::not_finite);
      selection->take_signs(tensor, 1, words);
      EXPECT_EQ(from_device<std::uint32_t>(words), Indices{7});
    }
    selection->drop_not_finite(tensor);
    values[2000] = 0;
    EXPECT_EQ(from_device<float>(tensor), values);
    selection->choose_at_least(tensor, 1);
    expect_taken(*selection, tensor, at_least(values, 1));
  }
  const auto selection = make_selection(*device_, 2, Choice::above, Category::buffers);
  selection->choose_deviations(on_device(Dtype::float32, std::vector{2e38f, 2e38f}), 3);
  EXPECT_EQ(from_device<std::int32_t>(selection->chosen())[0], Selection::not_finite);
  selection->choose_deviations(on_device(Dtype::float32, std::vector{0.0f, 0.0f}), 3);
  EXPECT_EQ(from_device<std::int32_t>(selection->chosen())[0], 0);
}

TEST_P(Selections, RefuseWhatDoesNotMatch) {
  const auto selection = make_selection(*device_, 4, Choice::largest, Category::buffers);
  const Tensor four = on_device(Dtype::float32, std::vector<float>(4));
  const Tensor five = on_device(Dtype::float32, std::vector<float>(5));
  const Tensor words = on_device(Dtype::uint32, Indices(4));
  EXPECT_THROW(selection->choose_largest(five, 1), std::logic_error);
  EXPECT_THROW(selection->choose_largest(four, 0), std::logic_error);
  EXPECT_THROW(selection->choose_largest(four, 5), std::logic_error);
  EXPECT_THROW(selection->choose_at_least(four, 1), std::logic_error) << "made for the largest";
  EXPECT_THROW(selection->choose_deviations(four, 1), std::logic_error) << "made for the largest";
  const auto above = make_selection(*device_, 4, Choice::above, Category::buffers);
  EXPECT_THROW(above->choose_largest(four, 1), std::logic_error) << "made for a bound";
  for (const float least : {0.0f, inf, nan})
    EXPECT_THROW(above->choose_at_least(four, least), std::logic_error);
  EXPECT_THROW(selection->take(four, words, four), std::logic_error);
  EXPECT_THROW(selection->add(words, words.slice(0, {3}), four), std::logic_error);
}

constexpr Dtype values_of_selections[] = {Dtype::float32};
SHARDMARK_ON_EVERY_DEVICE_IN(Selections, values_of_selections);

}  // namespace
}  // namespace machine
