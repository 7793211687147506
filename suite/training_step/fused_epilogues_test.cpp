// Bias and GELU inside cuBLASLt's products: judged like the other path, and really taken.

#include <gtest/gtest.h>

#include <string>

#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/small_steps.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

using harness::Record, harness::Ruling;

Record judged(const std::string& dtype, int cuda_devices) {
  const auto cases = small_steps::steps({{"ranks", "1"},
                                         {"dtype", dtype},
                                         {"recompute-granularity", "full"},
                                         {"fused-epilogues", "1"}});
  EXPECT_EQ(cases.size(), 1U);
  return on_threads::run(cases, 1, 0.001, {}, cuda_devices).at(0);
}

TEST(FusedEpilogues, AStepPassesOnAGpu) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const char* const dtype : {"float", "bfloat16", "half"}) {
    const Record record = judged(dtype, 1);
    EXPECT_EQ(record.verdict, Ruling::pass) << dtype << ": " << record.reason;
  }
  EXPECT_EQ(judged("double", 1).verdict, Ruling::skipped);
}

TEST(FusedEpilogues, TheHostHasNone) {
  const Record record = judged("bfloat16", 0);
  EXPECT_EQ(record.verdict, Ruling::skipped);
  testing::expect_words(record.reason, {"fused-epilogues requires cuBLASLt", "bfloat16 on host"});
  testing::expect_words(
      on_threads::refusal("gpt_step",
                          {{"model", "llama_tiny"}, {"ranks", "1"}, {"fused-epilogues", "1"}}),
      {"fused-epilogues requires a model with biases"});
}

// The input of GELU is rounded once less, so the loss in bfloat16 differs in its last digits.
TEST(FusedEpilogues, RoundLessOftenThanSeparateKernels) {
  if (!machine::cuda::is_virtual()) GTEST_SKIP() << "a library may have no fused product";
  machine::run_ranks(1, [](machine::World& world) {
    world.use_device(machine::cuda::make_device(0));
    const auto loss_of_a_step = [&](bool fused) {
      TrainingConfig config;
      set_model(config, "tiny");
      config.precision.dtype = machine::Dtype::bfloat16;
      config.activations.fused_epilogues = fused;
      const Corpus corpus = Corpus::generated(1);
      Trainer trainer(world, world.group(), world.device(), config, corpus);
      trainer.step();
      return trainer.mean_loss();
    };
    EXPECT_EQ(loss_of_a_step(true), loss_of_a_step(true));
    EXPECT_NE(loss_of_a_step(true), loss_of_a_step(false));
  });
}

}  // namespace
}  // namespace suite
