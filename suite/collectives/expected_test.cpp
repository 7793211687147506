// What the collectives' oracle expects, against results worked out by hand; and where it says that
// an output went wrong.
#include "suite/collectives/expected.h"

#include <gtest/gtest.h>

#include "collectives/plan.h"
#include "machine/world/world.h"
#include "suite/collectives/wrong_elements.h"

namespace suite {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Tensor;

TEST(Expected, SumsWrapAroundAndAveragesTruncate) {
  // 100 ranks: sums of uint8 beyond 255, averages of int8 that have a fraction.
  Question question{Operation::all_reduce, Reduction::sum, Dtype::uint8, 100, 0, 500};
  bool wrapped = false;
  const std::vector<double> sums = expected(question, 0);
  for (std::int64_t i = 0; i < question.count; ++i) {
    int sum = 0;
    for (int rank = 0; rank < 100; ++rank) sum += static_cast<int>(pattern(question, rank, i));
    wrapped = wrapped || sum > 255;
    EXPECT_EQ(sums[static_cast<std::size_t>(i)], sum % 256);
  }
  EXPECT_TRUE(wrapped);
  question = {Operation::all_reduce, Reduction::avg, Dtype::int8, 3, 0, 500};
  const std::vector<double> averages = expected(question, 0);
  for (std::int64_t i = 0; i < question.count; ++i) {
    int sum = 0;
    for (int rank = 0; rank < 3; ++rank) sum += static_cast<int>(pattern(question, rank, i));
    EXPECT_EQ(averages[static_cast<std::size_t>(i)], sum / 3);
  }
}

TEST(Expected, BoundsGrowWithRanksAndRoundoff) {
  const Question sum{Operation::all_reduce, Reduction::sum, Dtype::bfloat16, 3, 0, 1};
  const Bounded three = reduce_exactly(sum, {1, -2, 4});
  EXPECT_EQ(three.value, 3);
  EXPECT_NEAR(three.bound, 7 * 2 / (256.0 - 2), 1e-12);  // two additions
  Question max = sum;
  max.reduction = Reduction::max;
  EXPECT_EQ(reduce_exactly(max, {1, -2, 4}).value, 4);
  EXPECT_EQ(reduce_exactly(max, {1, -2, 4}).bound, 0);
}

TEST(WrongElements, AreCountedAndShown) {
  machine::run_ranks(1, [](machine::World& world) {
    const Tensor right(world.host_device(), Dtype::bfloat16, {100}, machine::Category::buffers);
    const Tensor wrong(world.host_device(), Dtype::bfloat16, {100}, machine::Category::buffers);
    from_doubles(right, std::vector<double>(100, 1));
    from_doubles(wrong, std::vector<double>(100, 1));
    EXPECT_EQ(wrong_elements(wrong, right).count, 0);
    from_doubles(wrong.slice(17, {1}), {3});
    from_doubles(wrong.slice(40, {1}), {2});
    const WrongElements found = wrong_elements(wrong, right);
    EXPECT_EQ(found.count, 2);
    EXPECT_EQ(found.first, 17);
    EXPECT_EQ(found.last, 40);
    EXPECT_EQ(found.text,
              "2 of 100 elements wrong, from 17 to 40; the first is 0x4040 (3), not 0x3f80 (1)");
  });
}

TEST(WrongElements, NameWhoSentThem) {
  // Ring all-gather: everything but a rank's own share comes from the rank before.
  const auto& ring = collectives::find_algorithm(Operation::all_gather, "ring");
  const collectives::Call call{2, 4, 2};
  for (std::int64_t i = 0; i < 40; ++i)
    EXPECT_EQ(last_writer(ring, call, 10, i), i / 10 == 2 ? -1 : 1) << i;
  // Pairwise all-to-all: each share from its rank.
  const auto& pairwise = collectives::find_algorithm(Operation::all_to_all, "pairwise");
  for (std::int64_t i = 0; i < 40; ++i)
    EXPECT_EQ(last_writer(pairwise, {2, 4, 1}, 10, i), i / 10 == 2 ? -1 : i / 10) << i;
}

}  // namespace
}  // namespace suite
