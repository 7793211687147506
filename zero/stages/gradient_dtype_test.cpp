// Gradients in 16 bits, their cost, and the options of their sum over dp.

#include <gtest/gtest.h>

#include <limits>

#include "zero/cost/cost.h"
#include "zero/stages/step.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::Dtype;
using testing::RankModel;

GradientPlan plan_of(const std::vector<std::int64_t>& sizes, Dtype gradient, int dp) {
  GradientPlan plan{1, Dtype::bfloat16, gradient, 1, 1, dp, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    plan.rows.push_back({std::to_string(i), sizes[i], gradient, {Over::dp}, 1, true, false});
  return plan;
}

// Values 2 + gradients 2 + master and two moments 12 bytes (Rajbhandari et al. 2020, section 3.1);
// with gradients in float 18. Extents without padding.
TEST(GradientDtype, SixteenBytesAParameter) {
  constexpr std::int64_t psi = 64 * 4 * 100;
  for (const auto& [dtype, gradient] : {std::pair(Dtype::bfloat16, 2), {Dtype::float32, 4}}) {
    const GradientPlan plan = plan_of({psi}, dtype, 4);
    const Layout whole = layout(plan);
    const auto bytes = [&](int stage) {
      const ExpectedMemory memory = expected_memory(stage, plan, whole, AdamW{});
      return static_cast<std::int64_t>(memory.parameters + memory.gradients + memory.optimizer);
    };
    EXPECT_EQ(bytes(0), psi * (2 + gradient + 12));
    EXPECT_EQ(bytes(1), psi * (2 + gradient) + psi / 4 * 12);
  }
}

// ZeRO-Offload moves a gradient down and a value up for each owned parameter (Ren et al. 2021,
// section 4.2): 2 + 2 bytes.
TEST(GradientDtype, OffloadMovesFourBytesAParameter) {
  constexpr std::size_t psi = 64 * 4 * 100;
  const GradientPlan plan = plan_of({psi}, Dtype::bfloat16, 4);
  StepOptions options;
  options.offload_optimizer.device = OffloadDevice::cpu;
  const OffloadTraffic moved = expected_offload_traffic(2, plan, layout(plan), AdamW{}, options);
  EXPECT_EQ(moved.down, 2 * psi / 4);
  EXPECT_EQ(moved.up, 2 * psi / 4);
}

TEST(GradientDtype, IsThatOfTheValuesOrFloat) {
  machine::run_ranks(1, [](machine::World& world) {
    RankModel model(world, {});
    const auto plan = [&](Dtype value, Dtype gradient) {
      return gradient_plan(model.list(), value, model.grid, 1, {}, gradient).gradient_dtype;
    };
    EXPECT_EQ(plan(Dtype::bfloat16, Dtype::bfloat16), Dtype::bfloat16);
    EXPECT_EQ(plan(Dtype::float16, Dtype::float32), Dtype::float32);
    EXPECT_THROW(plan(Dtype::bfloat16, Dtype::float16), std::invalid_argument);
    EXPECT_THROW(plan(Dtype::float64, Dtype::float32), std::invalid_argument);
  });
}

// Without the check, NaN and infinity reach the values, as in DeepSpeed.
TEST(GradientDtype, OverflowIsSkippedOnlyIfChecked) {
  for (const bool checks : {true, false})
    machine::run_ranks(2, [&](machine::World& world) {
      RankModel model(world, {.dp = 2});
      const GradientPlan plan =
          gradient_plan(model.list(), Dtype::bfloat16, model.grid, 48, {}, Dtype::bfloat16);
      FlatStates states(world.device(), plan, model.list());
      model.set_values();
      const auto step =
          make_step(1, states, plan, model.communicators(), {.check_overflow = checks});
      model.set_gradients(0);
      if (world.rank() == 1)
        world.device().stream().kernels().fill(model.list().front()->gradient,
                                               std::numeric_limits<double>::infinity());
      EXPECT_EQ(step->step().updated, !checks);
      const double value = to_doubles(model.list().front()->value).front();
      EXPECT_EQ(std::isnan(value), !checks);
    });
}

// Parameters are taken in the order of the model until the next one does not fit.
TEST(GradientDtype, PersistentParametersFitTheModelsThreshold) {
  const GradientPlan plan = plan_of({100, 3, 200, 5, 4, 1}, Dtype::float32, 2);
  const auto persistent = [&](std::int64_t most) {
    LayoutOptions options{1000, {0, 0, 1, 1, 1, 1}, 5};
    options.model_persistence_threshold = most;
    const Layout all = layout(plan, options);
    std::vector<int> rows;
    for (int row = 0; row < 6; ++row)
      if (all.buckets[static_cast<std::size_t>(all.bucket_of[static_cast<std::size_t>(row)])]
              .persistent)
        rows.push_back(row);
    return rows;
  };
  EXPECT_EQ(persistent(1'000'000), (std::vector{1, 3, 4, 5}));
  EXPECT_EQ(persistent(8), (std::vector{1, 3}));
  EXPECT_EQ(persistent(7), (std::vector{1, 4})) << "5 does not fit after 3, but 4 does";
  EXPECT_EQ(persistent(0), std::vector<int>{});
}

}  // namespace
}  // namespace zero
