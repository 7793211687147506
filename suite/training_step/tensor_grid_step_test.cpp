// Tensor parallelism over a grid in the training step: cases that pass every oracle, the options
// that a step refuses, and the plan of its memory.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/plan/memory_plan.h"
#include "suite/testing/file_case.h"
#include "suite/testing/small_steps.h"
#include "suite/testing/why_no_step.h"
#include "suite/trainer/expectations.h"
#include "suite/trainer/validation.h"
#include "suite/training_step/curve_keys.h"

namespace suite {
namespace {

using layers::TensorParallelMode;
using small_steps::expect_passed;
using small_steps::steps;
using enum TensorParallelMode;

TrainingConfig trained(TensorParallelMode mode, int ranks, int sequences, int depth = 1) {
  TrainingConfig config;
  config.degrees.tp = ranks;
  config.tensor_grid = {mode, depth};
  set_model(config, "tiny");
  config.activations.use_flash_attn = true;
  config.batch = {.micro_batch_size = sequences, .global_batch_size = 8};
  return config;
}

// A square of ranks with ZeRO stage 3 over dp, and copies of the parameters on a depth.
TEST(TensorGridStep, PassesEveryOracle) {
  const harness::AxisFlags square{{"ranks", "4"},
                                  {"tensor-model-parallel-size", "4"},
                                  {"tensor-parallel-mode", "2d"},
                                  {"micro-batch-size", "2"},
                                  {"global-batch-size", "4"},
                                  {"use-flash-attn", "1"}};
  expect_passed(steps(square), 4);
  harness::AxisFlags deep = square;
  deep["tensor-model-parallel-size"] = deep["tensor-parallel-depth"] = "2";
  deep["data-parallel-size"] = "2";
  deep["tensor-parallel-mode"] = "2.5d";
  deep["zero-stage"] = "3";
  expect_passed(steps(deep), 4);
}

TEST(TensorGridStep, RefusalsNameTheReason) {
  const TrainingConfig square = trained(two_d, 4, 2);
  EXPECT_EQ(why_no_step(square), "accepted");
  EXPECT_EQ(why_no_step(trained(two_and_a_half_d, 8, 4, 2)), "accepted");
  EXPECT_EQ(why_no_step(trained(three_d, 8, 4)), "accepted");
  EXPECT_EQ(why_no_step(trained(two_d, 8, 4)),
            "tensor-parallel-mode 2d requires a square number of ranks (got 8)");
  EXPECT_EQ(why_no_step(trained(two_d, 1, 2)),
            "tensor-parallel-mode 2d requires tensor-model-parallel-size 2 or more (got 1)");
  EXPECT_EQ(why_no_step(trained(one_d, 4, 2, 2)),
            "tensor-parallel-depth 2 requires tensor-parallel-mode 2.5d (got 1d)");
  TrainingConfig cube = trained(three_d, 8, 4);
  cube.tensor_grid.product = layers::GridMethod::cannon;
  EXPECT_EQ(why_no_step(cube),
            "tensor-parallel-product cannon requires tensor-parallel-mode 2d (got 3d)");
  EXPECT_EQ(why_no_step(trained(three_d, 8, 2)),
            "tensor-parallel-mode 3d: micro-batch-size is 2; expected a multiple of 4, so that a "
            "rank has whole sequences");
  const auto refused = [&](const auto& change) {
    TrainingConfig config = square;
    change(config);
    return why_no_step(config);
  };
  using Config = TrainingConfig&;
  EXPECT_EQ(refused([](Config c) { c.activations.use_flash_attn = false; }),
            "tensor-parallel-mode 2d requires use-flash-attn, because attention over a grid is "
            "blockwise (got off)");
  EXPECT_EQ(
      refused([](Config c) { c.activations.sequence_parallel = true; }),
      "tensor-parallel-mode 2d requires sequence-parallel off, because a grid splits the rows "
      "between the products, too (got on)");
  EXPECT_EQ(
      refused([](Config c) { c.optimizer.type = "lamb"; }),
      "tensor-parallel-mode 2d requires optimizer adamw, sgd, rmsprop or lion, whose update of "
      "an element needs no other (got lamb)");
  EXPECT_EQ(refused([](Config c) {
              c.activations.recompute_granularity = layers::RecomputeGranularity::full;
            }),
            "tensor-parallel-mode 2d requires recompute-granularity none (got full)");
  EXPECT_EQ(refused([](Config c) {
              c.precision.dtype = machine::Dtype::bfloat16;
              c.zero.grad_accum_dtype = "bf16";
            }),
            "tensor-parallel-mode 2d requires gradients that are added up in fp32 (got bfloat16)");
  EXPECT_EQ(
      refused([](Config c) { c.degrees.cp = 2; }),
      "tensor-parallel-mode 2d requires context-parallel-size 1, because a rank of a grid has "
      "whole sequences (got 2)");
  EXPECT_EQ(refused([](Config c) { c.frozen = "blocks.0.*"; }),
            "tensor-parallel-mode 2d requires freeze none (got blocks.0.*)");
  EXPECT_EQ(
      refused([](Config c) { c.algorithms.tp = "ring"; }),
      "tensor-parallel-mode 2d requires tp-algorithm default, because broadcasts and reductions "
      "have their own (got ring)");
  EXPECT_EQ(refused([](Config c) { c.model.hidden_dropout = 0.1; }),
            "tensor-parallel-mode 2d requires hidden-dropout 0 (got 0.1)");
  EXPECT_EQ(refused([](Config c) { set_model(c, "llama_tiny"); }),
            "tensor-parallel-mode 2d requires normalization LayerNorm (got RMSNorm)");
}

// The first rank of a grid has the most parameters. Other tools have no formula for a grid.
TEST(TensorGridStep, PlansTheMemoryOfTheFirstRank) {
  using configuration::Counting;
  for (const TrainingConfig& config :
       {trained(two_d, 4, 2), trained(two_and_a_half_d, 8, 4, 2), trained(three_d, 8, 4)}) {
    SCOPED_TRACE(name(config.tensor_grid.mode));
    const configuration::Held planned =
        configuration::held(config, configuration::asked_for(config, Counting::ours), {});
    EXPECT_EQ(planned.not_held, "");
    EXPECT_EQ(configuration::held(config, configuration::asked_for(config, Counting::megatron), {})
                  .not_held,
              "its formula has tensor-parallel-mode 1d");
    machine::run_ranks(config.degrees.tp, [&](machine::World& world) {
      world.device().set_threads(1);
      const Corpus corpus = Corpus::generated(1, config.model.vocabulary);
      Trainer trainer(world, world.group(), world.device(), config, corpus);
      const auto peaks = expected_peaks(trainer);
      if (world.rank() == 0) {
        EXPECT_EQ(planned.gpu.parameters,
                  static_cast<double>(peaks.at(machine::Category::parameters)));
        EXPECT_EQ(planned.gpu.activations,
                  static_cast<double>(peaks.at(machine::Category::activations)));
      }
      EXPECT_LE(static_cast<double>(peaks.at(machine::Category::parameters)),
                planned.gpu.parameters);
    });
  }
}

// A curve of losses belongs to any grid.
TEST(TensorGridStep, CurvesDoNotDependOnTheGrid) {
  const Corpus corpus = Corpus::generated(1, 256);
  EXPECT_EQ(curve_keys(trained(two_d, 4, 2), corpus), curve_keys(trained(one_d, 4, 2), corpus));
}

}  // namespace
}  // namespace suite
