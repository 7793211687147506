// Buckets that stay gathered for a later use of the pass.

#include "zero/stages/prefetch.h"

#include <gtest/gtest.h>

#include "zero/cost/cost.h"

namespace zero {
namespace {

const Uses there_and_back = {{0}, {1}, {2}, {2}, {1}, {0}};
const std::vector<std::int64_t> sizes = {10, 20, 30};

TEST(Reuse, KeepsWhatIsUsedWithinTheDistance) {
  const auto stay = [](std::int64_t distance) { return kept(there_and_back, sizes, distance); };
  EXPECT_EQ(stay(0), Uses(6));
  EXPECT_EQ(stay(1), (Uses{{}, {}, {2}, {}, {}, {}}));
  EXPECT_EQ(stay(60), (Uses{{}, {}, {2}, {}, {}, {}})) << "60 elements lie between the uses of 1";
  EXPECT_EQ(stay(61), (Uses{{}, {1}, {2}, {}, {}, {}}));
  EXPECT_EQ(stay(1000), (Uses{{0}, {1}, {2}, {}, {}, {}}));
}

TEST(Reuse, GathersOnceWhatStays) {
  const auto order = [](std::int64_t distance) {
    return fetches(there_and_back, Uses(6), kept(there_and_back, sizes, distance));
  };
  EXPECT_EQ(order(0), (std::vector{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(order(61), (std::vector{0, 1, 2, 0}));
  EXPECT_EQ(order(1000), (std::vector{0, 1, 2}));
  // Buckets that stay are not gathered ahead, and count as live.
  const Uses all = kept(there_and_back, sizes, 1000);
  EXPECT_EQ(prefetches(there_and_back, sizes, 1000, 1000, all), (Uses{{1, 2}, {}, {}, {}, {}, {}}));
  EXPECT_EQ(prefetches(there_and_back, sizes, 1000, 50, all), (Uses{{1}, {}, {}, {}, {}, {}}));
}

// Psi elements in equal parts over d ranks, m micro-batches: (d-1)/d Psi m u E_v with u = 2 uses,
// or 1 if every part stays from forward to backward.
TEST(Reuse, HalvesTheGatheredBytes) {
  constexpr std::int64_t part = 64 * 4 * 10, parts = 5, dp = 4, micro_batches = 3;
  GradientPlan plan{1, Dtype::bfloat16, Dtype::bfloat16, 1, 1, dp, {}};
  LayoutOptions options{.persistence_threshold = 0};
  std::vector<std::vector<int>> rows;
  for (int i = 0; i < parts; ++i) {
    plan.rows.push_back({std::to_string(i), part, Dtype::bfloat16, {Over::dp}, 1, true, false});
    options.parts.push_back(i);
    rows.push_back({i});
  }
  const Layout whole = layout(plan, options);
  const auto gathered = [&](std::int64_t distance) {
    std::int64_t elements = 0;
    for (const auto& calls : expected_calls(3, plan, whole, {.stage3_max_reuse_distance = distance},
                                            forward_and_backward(rows, micro_batches)))
      if (calls.what == "values") elements += calls.elements * calls.calls;
    return elements;
  };
  EXPECT_EQ(gathered(0), parts * part * micro_batches * 2);
  EXPECT_EQ(gathered(1'000'000'000), parts * part * micro_batches);
}

}  // namespace
}  // namespace zero
