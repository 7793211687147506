// The numbers with which collectives are checked: kernels regenerate them, and find every wrong
// element with its index.

#include <cmath>
#include <limits>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

class PatternKernels : public OnDevice {
 protected:
  static constexpr std::int64_t count = 5000, first = 12345;

  Pattern pattern(Reduction reduction = Reduction::sum, bool reduces = true) const {
    return {dtype(), reduces, reduction, 3};
  }
  // Returns the reduction written as a sum, product, … of the ranks' inputs.
  static double by_hand(const Pattern& pattern, std::int64_t index) {
    std::vector<double> inputs;
    for (int rank = 0; rank < pattern.ranks; ++rank)
      inputs.push_back(pattern_value(pattern, rank, index));
    double sum = 0, product = 1;
    for (const double input : inputs) {
      sum += input;
      product *= input;
    }
    switch (pattern.reduction) {
      case Reduction::prod:
        return product;
      case Reduction::max:
        return *std::max_element(inputs.begin(), inputs.end());
      case Reduction::min:
        return *std::min_element(inputs.begin(), inputs.end());
      default:
        return sum;
    }
  }
  Tensor right(const Pattern& pattern, std::int64_t size) {
    Values values;
    for (std::int64_t i = 0; i < size; ++i) values.push_back(by_hand(pattern, first + i));
    const Tensor tensor = empty({size});
    from_doubles(tensor, values);
    return tensor;
  }
  PatternErrors errors_of(const Tensor& output, const Pattern& pattern,
                          const std::vector<PatternPart>& parts, double bound = 0) {
    const Tensor words(*device_, Dtype::uint64, {pattern_error_words}, Category::buffers);
    kernels().fill(words, 0);
    for (const PatternPart& part : parts)
      kernels().check_pattern(output, pattern, part, bound, words);
    PatternErrors found{};
    device_->stream().copy(&found, words.data(), sizeof found);
    device_->stream().synchronize();
    return found;
  }
  // Returns the distance by which element `index` is now wrong.
  static double spoil(const Tensor& tensor, std::int64_t index) {
    const Tensor element = tensor.slice(index, {1});
    const double before = to_doubles(element).front(), after = before == 0 ? 1 : 0;
    from_doubles(element, {after});
    return std::abs(after - before);
  }
};

TEST_P(PatternKernels, FillTheInputs) {
  for (const Pattern& inputs :
       {pattern(), pattern(Reduction::prod), pattern(Reduction::max, false)})
    for (int rank = 0; rank < 3; ++rank) {
      const Tensor filled = empty({count});
      kernels().fill_pattern(filled, inputs, rank, first);
      const Values values = to_doubles(filled);
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(i)], pattern_value(inputs, rank, first + i));
    }
}

TEST_P(PatternKernels, AcceptTheReductionOfAllRanks) {
  for (const Reduction reduction :
       {Reduction::sum, Reduction::prod, Reduction::max, Reduction::min}) {
    const Tensor output = right(pattern(reduction), count);
    const auto found = errors_of(output, pattern(reduction), {{-1, first, 0, count}});
    EXPECT_EQ(found.count, 0u) << name(reduction) << ", first " << found.first();
    // Other elements, and the input of one rank, are not accepted. Without signs, all products are
    // equal.
    if (reduction != Reduction::prod || has_sign(dtype())) {
      EXPECT_GT(errors_of(output, pattern(reduction), {{-1, first + 1, 0, count}}).count, 0u);
    }
    EXPECT_GT(errors_of(output, pattern(reduction), {{1, first, 0, count}}).count, 0u);
  }
}

TEST_P(PatternKernels, FindOneWrongElementAndItsIndex) {
  // More elements than a grid has threads.
  const std::int64_t size = dtype() == Dtype::float32 ? 300'001 : count;
  const Tensor output = right(pattern(), size);
  for (const std::int64_t index : {std::int64_t{0}, size / 2, size - 1}) {
    const double before = to_doubles(output.slice(index, {1})).front();
    const double off = spoil(output, index);
    const auto found = errors_of(output, pattern(), {{-1, first, 0, size}});
    EXPECT_EQ(found.count, 1u) << index;
    EXPECT_EQ(found.first(), index);
    EXPECT_EQ(found.last, static_cast<std::uint64_t>(index));
    EXPECT_EQ(found.largest, off);
    from_doubles(output.slice(index, {1}), {before});
  }
  EXPECT_EQ(errors_of(output, pattern(), {{-1, first, 0, size}}).count, 0u);
}

// The parts of an output have other sources. The errors of all parts are joined.
TEST_P(PatternKernels, JoinTheErrorsOfParts) {
  const Pattern inputs = pattern(Reduction::sum, false);
  const Tensor output = empty({300});
  const std::vector<PatternPart> parts{{2, 7, 0, 90}, {0, 1000, 90, 200}, {1, 0, 290, 10}};
  for (const PatternPart& part : parts)
    kernels().fill_pattern(output.slice(part.begin, {part.count}), inputs, part.rank, part.first);
  EXPECT_EQ(errors_of(output, inputs, parts).count, 0u);
  double largest = 0;
  for (const std::int64_t index : {89, 90, 299}) largest = std::max(largest, spoil(output, index));
  const auto found = errors_of(output, inputs, parts);
  EXPECT_EQ(found.count, 3u);
  EXPECT_EQ(found.first(), 89);
  EXPECT_EQ(found.last, 299u);
  EXPECT_EQ(found.largest, largest);
}

TEST_P(PatternKernels, JudgeByABoundOrByBits) {
  if (!is_floating(dtype())) GTEST_SKIP() << "integers have no bounds";
  const Tensor output = right(pattern(), 100);
  const PatternPart all{-1, first, 0, 100};
  const double off = spoil(output, 17);
  EXPECT_EQ(errors_of(output, pattern(), {all}, off).count, 0u);
  EXPECT_EQ(errors_of(output, pattern(), {all}, off / 2).count, 1u);
  from_doubles(output.slice(17, {1}), {NAN});
  const auto found = errors_of(output, pattern(), {all}, 1e30);
  EXPECT_EQ(found.first(), 17);
  EXPECT_EQ(found.largest, std::numeric_limits<double>::infinity());
}

SHARDMARK_ON_EVERY_DEVICE_IN(PatternKernels, every_dtype);

}  // namespace
}  // namespace machine
