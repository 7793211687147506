#include "zero/optimizers/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "machine/world/grid.h"
#include "machine/world/world.h"
#include "zero/optimizers/loss_scale_traces.h"

namespace zero {
namespace {

TEST(LossScale, FollowsTheScriptedSteps) {
  std::size_t throwing = 0;
  for (const LossScaleTrace& trace : loss_scale_traces()) {
    LossScale scale(trace.options);
    EXPECT_EQ(scale.scale(), trace.options.initial_scale);
    std::vector<double> scales;
    bool thrown = false;
    for (const char step : trace.steps) {
      try {
        scale.update(step == 'o');
        scales.push_back(scale.scale());
      } catch (const OverflowAtMinimum& error) {
        thrown = true;
        EXPECT_EQ(scale.scale(), trace.options.min_scale) << error.what();
      }
    }
    EXPECT_EQ(scales, trace.scales) << name(trace.options.scaling) << ", " << trace.what;
    EXPECT_EQ(thrown, trace.scales.size() < trace.steps.size());
    throwing += thrown;
  }
  EXPECT_EQ(throwing, 2u);
}

// A thousand steps of the usual window: one step apart.
TEST(LossScale, UsualWindowsAreOneStepApart) {
  const auto steps_until_doubled = [](LossScaling scaling) {
    LossScale scale(usual_options(scaling));
    int steps = 0;
    for (const double before = scale.scale(); scale.scale() == before; ++steps) scale.update(false);
    return steps;
  };
  EXPECT_EQ(steps_until_doubled(LossScaling::megatron), 1000);
  for (const LossScaling scaling :
       {LossScaling::deepspeed_zero, LossScaling::deepspeed_fused, LossScaling::deepspeed_unfused})
    EXPECT_EQ(steps_until_doubled(scaling), 1001) << name(scaling);
}

constexpr double after_two_overflows() {
  LossScale scale({LossScaling::megatron, 16, 1, 1000, 2});
  scale.update(true);
  scale.update(true);
  return scale.scale();
}
static_assert(after_two_overflows() == 8);

std::string refusal(LossScaling scaling, std::string_view key, double value) {
  LossScaleOptions options = usual_options(scaling);
  try {
    set_option(options, key, value);
    LossScale scale(options);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LossScale, OptionsHaveTheToolsOwnNames) {
  LossScaleOptions megatron = usual_options(LossScaling::megatron);
  set_option(megatron, "--initial-loss-scale", 4096);
  set_option(megatron, "--min-loss-scale", 2);
  set_option(megatron, "--loss-scale-window", 17);
  set_option(megatron, "--hysteresis", 3);
  EXPECT_EQ(megatron.initial_scale, 4096);
  EXPECT_EQ(megatron.min_scale, 2);
  EXPECT_EQ(megatron.window, 17);
  EXPECT_EQ(megatron.hysteresis, 3);
  LossScaleOptions deepspeed = usual_options(LossScaling::deepspeed_zero);
  EXPECT_FALSE(deepspeed.consecutive_hysteresis);
  set_option(deepspeed, "initial_scale_power", 12);
  set_option(deepspeed, "min_loss_scale", 0.5);
  set_option(deepspeed, "loss_scale_window", 500);
  set_option(deepspeed, "hysteresis", 1);
  set_option(deepspeed, "consecutive_hysteresis", 1);
  EXPECT_EQ(deepspeed.initial_scale, 4096);
  EXPECT_EQ(deepspeed.min_scale, 0.5);
  EXPECT_EQ(deepspeed.window, 500);
  EXPECT_EQ(deepspeed.hysteresis, 1);
  EXPECT_TRUE(deepspeed.consecutive_hysteresis);

  EXPECT_EQ(refusal(LossScaling::megatron, "--loss-scale-windows", 1),
            "unknown option of the loss scaling megatron '--loss-scale-windows'; did you mean "
            "'--loss-scale-window'?");
  EXPECT_NE(refusal(LossScaling::deepspeed_zero, "--hysteresis", 1), "accepted");
  EXPECT_NE(refusal(LossScaling::deepspeed_zero, "hysteresis", 1.5), "accepted");
  EXPECT_NE(refusal(LossScaling::deepspeed_zero, "hysteresis", 0), "accepted");
  EXPECT_NE(refusal(LossScaling::deepspeed_zero, "loss_scale_window", 0), "accepted");
  EXPECT_NE(refusal(LossScaling::deepspeed_zero, "min_loss_scale", 1e9), "accepted");
  EXPECT_NE(refusal(LossScaling::megatron, "--min-loss-scale", 0), "accepted");
  EXPECT_NE(refusal(LossScaling::constant, "--loss-scale", -1), "accepted");
  EXPECT_EQ(refusal(LossScaling::constant, "--loss-scale", 0.5), "accepted");
  EXPECT_EQ(find_loss_scaling("deepspeed_fused"), LossScaling::deepspeed_fused);
  EXPECT_THROW(find_loss_scaling("apex"), std::invalid_argument);
}

// Over two groups that cross, as tp and dp of a grid do: what one rank has, all know.
TEST(OverflowAnywhere, IsTheSameAnswerOnEveryRank) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  machine::run_ranks(4, [&](machine::World& world) {
    const machine::Grid grid({.tp = 2, .dp = 2}, world.rank());
    collectives::Communicator tp(world, grid.group(machine::Axis::tp),
                                 machine::Transport::shared_memory);
    collectives::Communicator dp(world, grid.group(machine::Axis::dp),
                                 machine::Transport::shared_memory);
    const machine::Tensor gradients(world.device(), machine::Dtype::float32, {1000},
                                    machine::Category::gradients);
    for (const double poison : {0.0, infinity, -infinity, std::nan("")}) {
      for (int where = 0; where < 4; ++where) {
        std::vector<double> values(1000, 3e38);  // whose float sum would overflow
        if (where == world.rank()) values[999] = poison;
        from_doubles(gradients, values);
        EXPECT_EQ(overflow_anywhere(gradients, {&tp, nullptr, &dp}), poison != 0);
        const bool mine = where == world.rank() && poison != 0;
        EXPECT_EQ(overflow_anywhere(gradients, {}), mine);
      }
    }
  });
}

}  // namespace
}  // namespace zero
