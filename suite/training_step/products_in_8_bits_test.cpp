// Products in 8 bits in the training step, by Megatron-LM's keys. The slices "products in 8 bits"
// of gpt_step judge bytes, memory and numerics.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "suite/checkpoint/saved_training.h"
#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/testing/file_case.h"
#include "suite/trainer/trainer.h"
#include "suite/trainer/validation.h"

namespace suite {
namespace {

using layers::Fp8Format, layers::Fp8Recipe;
using testing::expect_words;

TrainingConfig trained(const layers::Fp8Options& fp8, int dp = 1) {
  TrainingConfig config;
  config.degrees = {.dp = dp};
  set_model(config, "tiny");
  config.precision.dtype = machine::Dtype::bfloat16;
  config.fp8 = fp8;
  return config;
}

std::string why_not(const TrainingConfig& config) {
  try {
    validate(config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

// Ranks of dp have other tokens, and their amaxes: without a common scale their weights' codes
// would still agree, but gradients of one step would be encoded with several scales.
TEST(ProductsIn8Bits, TrainAsBfloat16Does) {
  constexpr int steps = 10;
  const auto losses = [](const layers::Fp8Options& fp8) {
    std::vector<double> all;
    machine::run_ranks(2, [&](machine::World& world) {
      const TrainingConfig config = trained(fp8, 2);
      const Corpus corpus = Corpus::generated(1, config.model.vocabulary);
      Trainer trainer(world, world.group(), world.device(), config, corpus);
      for (int step = 0; step < steps; ++step) {
        trainer.step();
        const double loss = trainer.mean_loss();
        if (world.rank() == 0) all.push_back(loss);
      }
    });
    return all;
  };
  const std::vector<double> wide = losses({});
  for (const layers::Fp8Options& fp8 : {layers::Fp8Options{.format = Fp8Format::hybrid},
                                        {.format = Fp8Format::e4m3, .recipe = Fp8Recipe::mxfp8}}) {
    const std::vector<double> narrow = losses(fp8);
    EXPECT_NE(narrow, wide) << name(fp8.recipe);
    for (std::size_t i = 0; i < narrow.size(); ++i)
      EXPECT_LT(std::abs(narrow[i] - wide[i]), 0.005 * wide[i]) << name(fp8.recipe) << " " << i;
  }
}

TEST(ProductsIn8Bits, RefusalsNameTheReason) {
  const layers::Fp8Options delayed{.format = Fp8Format::hybrid};
  EXPECT_EQ(why_not(trained(delayed)), "accepted");
  TrainingConfig config = trained(delayed);
  config.precision.dtype = machine::Dtype::float64;
  expect_words(why_not(config), {"fp8-format hybrid requires dtype float, bfloat16 or half"});
  config.precision.dtype = machine::Dtype::float16;
  expect_words(why_not(config), {"fp8-format hybrid requires dtype float or bfloat16 (got half)"});
  config = trained(delayed);
  config.zero.grad_accum_dtype = "bf16";
  expect_words(why_not(config), {"requires gradients that are added up in fp32 (got bfloat16)"});
  config = trained(delayed);
  config.activations.recompute_granularity = layers::RecomputeGranularity::full;
  expect_words(why_not(config), {"requires recompute-granularity none or selective"});
  config = trained({.format = Fp8Format::hybrid, .recipe = Fp8Recipe::blockwise}, 1);
  config.degrees.tp = 2;
  config.activations.sequence_parallel = true;
  expect_words(why_not(config), {"fp8-recipe blockwise with sequence-parallel requires",
                                 "tp that 128 divides (got 16)"});
  config = trained({.format = Fp8Format::hybrid, .recipe = Fp8Recipe::mxfp8, .margin = 1});
  expect_words(why_not(config), {"fp8-margin requires fp8-recipe delayed (got mxfp8)"});
  set_model(config = trained(delayed), "t5_tiny");
  expect_words(why_not(config), {"requires architecture decoder or encoder (got encoder-decoder)"});
}

TEST(ProductsIn8Bits, CheckpointsDoNotStoreHistories) {
  const testing::Folder folder;
  harness::Files files;
  files.save = folder.path("checkpoint") + "/";
  const auto corpus = []() -> Corpus { throw std::logic_error("not read"); };
  try {
    check_saved_training(files, trained({.format = Fp8Format::hybrid}), corpus);
    ADD_FAILURE() << "accepted";
  } catch (const std::exception& error) {
    expect_words(error.what(),
                 {"--save of a folder requires fp8-recipe tensorwise", "(got delayed)"});
  }
}

}  // namespace
}  // namespace suite
