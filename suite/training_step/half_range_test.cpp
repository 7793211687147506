// The reference in double predicts whether a step in half overflows.

#include "suite/reference/half_range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "suite/training_step/reference.h"
#include "suite/training_step/step_sweep.h"

namespace suite {
namespace {

using machine::Dtype;

TEST(HalfRange, PredictsOverflow) {
  const StepMagnitudes step{.forward = {10, 20}, .backward = {2, 8}};
  EXPECT_EQ(must_overflow(step, 1024, 0.01), false);
  EXPECT_EQ(must_overflow(step, 8100, 0.01), false);  // 64800
  EXPECT_EQ(must_overflow(step, 8189, 0.01), std::nullopt);
  EXPECT_EQ(must_overflow(step, 32760, 0.01), std::nullopt);  // 65520, within rounding
  EXPECT_EQ(must_overflow(step, 33200, 0.01), true);
  const StepMagnitudes large{.forward = {70000, 70000}, .backward = {}};
  EXPECT_EQ(must_overflow(large, 1, 0.01), true);  // no scale is small enough
}

TEST(HalfRange, CoversAllNumbersStoredInHalf) {
  RangeDevice device(1);
  const auto tensor = [&](const std::vector<double>& values, machine::Shape shape) {
    const machine::Tensor made(device, Dtype::float64, shape, machine::Category::buffers);
    from_doubles(made, values);
    return made;
  };
  const machine::Tensor a = tensor({1, -2, 3, -4}, {2, 2}), out = tensor({0, 0, 0, 0}, {2, 2});
  device.stream().kernels().scale(a, -10, out);
  StepMagnitudes seen = device.take();
  EXPECT_EQ(seen.forward.stored, 40);
  EXPECT_EQ(seen.backward.stored, 0);
  // 1 * 5 - 2 * 5 and 3 * 5 - 4 * 5 are small. Their largest term is 20, and 7 * 5 bounds all
  // partial sums.
  gemm(device.stream(), matrix(a), matrix(tensor({5, 5, 5, 5}, {2, 2})), matrix(out));
  seen = device.take();
  EXPECT_EQ(to_doubles(out), (std::vector<double>{-5, -5, -5, -5}));
  EXPECT_EQ(seen.forward.stored, 0) << "a part of it may be on each rank";
  EXPECT_EQ(seen.forward.partial, 35);
  const machine::Tensor sums = tensor({0, 0, 0, 0}, {2, 2});
  const machine::Tensor parts = tensor({0, 0, 0, 0}, {2, 2});
  device.watch_gradient(out, RangeDevice::InHalf::nothing);
  device.watch_gradient(sums, RangeDevice::InHalf::sum);
  device.watch_gradient(parts, RangeDevice::InHalf::parts);
  gemm(device.stream(), matrix(a), matrix(a), matrix(out), 1, 1);
  EXPECT_EQ(device.take().forward.partial, 0);
  // Contributions that cancel may be on different ranks: 2 * 7 * 4 bounds the sum of both.
  for (const float sign : {1.0f, -1.0f})
    gemm(device.stream(), matrix(a), matrix(a), matrix(sums), sign, 1);
  device.stream().kernels().accumulate(tensor({9, 0, 0, -1}, {2, 2}), sums);
  seen = device.take();
  EXPECT_EQ(seen.forward.partial, 0);
  EXPECT_EQ(seen.backward.stored, 9);
  EXPECT_EQ(seen.backward.partial, 2 * 24 + 9);
  EXPECT_EQ(device.take().backward.partial, 9) << "the gradient itself stays";
  // Each micro-batch may be far from the end of half's range, though their sum is beyond it.
  for (int i = 0; i < 2; ++i)
    device.stream().kernels().accumulate(tensor({50, 0, 0, 0}, {2, 2}), parts);
  seen = device.take();
  EXPECT_EQ(seen.backward.stored, 9) << "of the other gradient";
  EXPECT_EQ(seen.backward.partial, 100);
}

// At every scale that the reference in double decides, a step in half agrees. The reference decides
// most scales.
TEST(HalfRange, MatchesTheOverflowOfStepsInHalf) {
  machine::run_ranks(1, [](machine::World& world) {
    for (const char* args : {"none", "--swiglu --normalization RMSNorm --hidden-dropout 0.1"}) {
      TrainingConfig config;
      config.model.name = "tiny";
      config.model.arguments = args;
      config = completed(config);
      config.precision.dtype = Dtype::float16;
      config.batch.global_batch_size = 2;
      const Corpus corpus = Corpus::generated(1);
      const auto range = range_device(world, config);
      const auto exact = reference_trainer(world, config, corpus, Dtype::float64, range.get());
      exact->forward_backward();
      const StepMagnitudes step = range->take();
      EXPECT_GT(step.backward.stored, 0.9) << "the gradient of a logit";
      EXPECT_GE(step.backward.partial, step.backward.stored);
      int undecided = 0, overflowed = 0, taken = 0;
      for (double power = 8; power <= 20; power += 0.5) {
        config.precision.loss_scale = {.scaling = zero::LossScaling::constant,
                                       .initial_scale = std::exp2(power)};
        Trainer trainer(world, world.group(), world.device(), config, corpus);
        const bool updated = trainer.step().updated;
        ++(updated ? taken : overflowed);
        const auto must = must_overflow(step, std::exp2(power), gradient_epsilon(config));
        if (must)
          EXPECT_EQ(updated, !*must) << "2^" << power;
        else
          ++undecided;
      }
      EXPECT_GT(overflowed, 2);
      EXPECT_GT(taken, 8);
      EXPECT_LE(undecided, 4);
    }
  });
}

}  // namespace
}  // namespace suite
