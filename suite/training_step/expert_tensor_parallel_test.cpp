// Experts that are split over another number of ranks than tp has: refusals, and the same training
// at all degrees. Cases of gpt_step compare the step with plain loops, and bytes with formulas.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/why_no_step.h"
#include "suite/trainer/trainer.h"
#include "suite/trainer/validation.h"

namespace suite {
namespace {

using testing::expect_words;

struct Place {
  machine::Degrees degrees{};
  int ep = 1, etp = 1, stage = 0;
  const char* optimizer = "adamw";
};

TrainingConfig config_of(const Place& place) {
  TrainingConfig config;
  config.degrees = place.degrees;
  set_model(config, "moe_tiny");
  config.expert_parallel = place.ep;
  config.expert_tensor_parallel = place.etp;
  config.activations.sequence_parallel = place.degrees.tp > 1;
  config.precision.dtype = machine::Dtype::float64;
  config.optimizer.type = place.optimizer;
  config.batch.global_batch_size = 4;
  config.zero.stage = place.stage;
  config.zero.overlap_comm = false;
  config.zero.reduce_bucket_size = 5'000;
  config.zero.param_persistence_threshold = 100;
  return config;
}

struct Numbers {
  std::vector<double> losses, norms;
};

Numbers train(const Place& place) {
  Numbers numbers;
  const TrainingConfig config = config_of(place);
  machine::run_ranks(config.degrees.ranks(), [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    for (int step = 0; step < 3; ++step) {
      const double norm = trainer.step().gradient_norm, loss = trainer.mean_loss();
      if (world.rank() > 0) continue;
      numbers.losses.push_back(loss);
      numbers.norms.push_back(norm);
    }
  });
  return numbers;
}

// In double, three steps differ by roundings only: sums of at most 4 * 32 terms through two layers,
// and steps of the optimizer that amplify them.
TEST(ExpertTensorParallel, StepsDoNotDependOnIt) {
  const Place places[] = {
      {{.tp = 2}, 1, 1, 1},  // all ranks of tp hold all experts, which ZeRO shards
      {{.tp = 2, .dp = 2}, 4, 1, 3},
      {{.tp = 2, .dp = 2}, 1, 4, 2},
      {{.tp = 2, .pp = 2}, 2, 1, 2},  // the ranks of tp have different experts
      {{.tp = 2, .dp = 2}, 2, 1, 1, "muon"},
  };
  const Numbers adamw = train({}), muon = train({.optimizer = "muon"});
  for (const Place& place : places) {
    const Numbers got = train(place);
    const Numbers& want = place.optimizer == std::string("muon") ? muon : adamw;
    for (std::size_t step = 0; step < want.losses.size(); ++step) {
      const auto what = ::testing::Message() << place.optimizer << " tp " << place.degrees.tp
                                             << " dp " << place.degrees.dp << " ep " << place.ep
                                             << " etp " << place.etp << " step " << step;
      EXPECT_NEAR(got.losses[step] / want.losses[step], 1, 1e-10) << what;
      EXPECT_NEAR(got.norms[step] / want.norms[step], 1, 1e-7) << what;
    }
  }
}

TEST(ExpertTensorParallel, RefusalsNameTheDegreeAndTheReason) {
  EXPECT_EQ(why_no_step(config_of({{.tp = 2}, 1, 1})), "accepted");
  EXPECT_EQ(why_no_step(config_of({{.tp = 2}, 3, 1})),
            "expert-model-parallel-size is 3; expected a divisor of num-experts 4 (example: 4)");
  EXPECT_EQ(why_no_step(config_of({{.tp = 2, .dp = 3}, 4, 1})),
            "expert-model-parallel-size 4 x expert-tensor-parallel-size 1 is 4; expected a divisor "
            "of tensor- x context- x data-parallel-size 6");
  expect_words(why_no_step(config_of({{.dp = 3}, 1, 3})),
               {"expert-tensor-parallel-size is 3; expected a divisor of moe-ffn-hidden-size 128"});
  TrainingConfig dense = config_of({{.tp = 2}, 1, 1});
  set_model(dense, "tiny");
  EXPECT_EQ(why_no_step(dense), "expert-tensor-parallel-size is 1; expected 2 without num-experts");
  const auto with = [](auto change) {
    TrainingConfig config = config_of({{.tp = 2, .dp = 2}, 1, 1});
    config.precision.dtype = machine::Dtype::float32;
    change(config);
    return why_no_step(config);
  };
  EXPECT_EQ(with([](TrainingConfig& c) { c.zero.overlap_comm = true; }),
            "expert-tensor-parallel-size requires overlap_comm off, because gradients of experts "
            "have their own group");
  for (const char* optimizer : {"lamb", "adafactor"})
    expect_words(with([&](TrainingConfig& c) { c.optimizer.type = optimizer; }),
                 {std::string("optimizer ") + optimizer,
                  "requires expert-tensor-parallel-size 2, the degree of tp (got 1)",
                  "which hold different experts"});
  EXPECT_EQ(with([](TrainingConfig& c) { c.optimizer.type = "muon"; }), "accepted");
  expect_words(
      with([](TrainingConfig& c) {
        c.optimizer.type = "muon";
        c.expert_tensor_parallel = 4;
      }),
      {"optimizer muon requires expert-tensor-parallel-size 2", "(got 4)", "Newton-Schulz"});
  expect_words(with([](TrainingConfig& c) {
                 c.zero.stage = 3;
                 c.zero.options.plus_plus.hpz_partition_size = 2;
               }),
               {"zero_hpz_partition_size requires expert-tensor-parallel-size 2"});
}

}  // namespace
}  // namespace suite
