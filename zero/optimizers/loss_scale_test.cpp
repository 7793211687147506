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

// The default windows of a thousand steps differ by one step.
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

TEST(LossScale, RejectsInvalidOptions) {
  using enum LossScaling;
  // initial scale, minimum, window, hysteresis
  for (const LossScaleOptions& options : {LossScaleOptions{deepspeed_zero, 8, 1, 1, 0},
                                          {deepspeed_zero, 8, 1, 0, 1},
                                          {deepspeed_zero, 8, 1e9, 1, 1},
                                          {megatron, 8, 0, 1, 1},
                                          {constant, -1, 1, 1, 1}})
    EXPECT_THROW(LossScale{options}, std::invalid_argument) << name(options.scaling);
  EXPECT_EQ(LossScale({constant, 0.5, 1, 1, 1}).scale(), 0.5);
  EXPECT_EQ(find_loss_scaling("deepspeed_fused"), deepspeed_fused);
  EXPECT_THROW(find_loss_scaling("apex"), std::invalid_argument);
}

// The two groups cross, like tp and dp of a grid. An overflow on one rank reaches all ranks.
TEST(OverflowAnywhere, IsTheSameOnEveryRank) {
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
        std::vector<double> values(1000, 3e38);  // the float sum would overflow
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
