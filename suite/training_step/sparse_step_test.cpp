// Block-sparse attention in the training step: what a step refuses, and that all its blocks are
// dense attention. Cases of gpt_step compare it with the plain reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "suite/checkpoint/training_checkpoint.h"
#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/why_no_step.h"
#include "suite/trainer/trainer.h"
#include "suite/trainer/validation.h"
#include "suite/training_step/curve_keys.h"

namespace suite {
namespace {

using layers::SparseMode;
using testing::expect_words;

TrainingConfig trained(const std::string& model, SparseMode mode, int sequence = 64) {
  TrainingConfig config;
  config.model.sparse.pattern.mode = mode;
  config.model.seq_length = sequence;
  set_model(config, model);
  config.precision.dtype = machine::Dtype::float64;
  config.batch = {.micro_batch_size = 2, .global_batch_size = 4};
  return config;
}

std::vector<double> losses(const TrainingConfig& config) {
  std::vector<double> all;
  machine::run_ranks(1, [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(1, config.model.vocabulary);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    for (int step = 0; step < 2; ++step) {
      trainer.step();
      all.push_back(trainer.mean_loss());
    }
  });
  return all;
}

TEST(SparseStep, OfAllBlocksIsDenseAttention) {
  for (const char* model : {"tiny", "bert_tiny"}) {
    TrainingConfig dense = trained(model, SparseMode::none);
    dense.activations.use_flash_attn = true;
    const std::vector<double> want = losses(dense);
    EXPECT_EQ(losses(trained(model, SparseMode::dense)), want) << model;
    EXPECT_NE(losses(trained(model, SparseMode::local_sliding_window)), want) << model;
  }
}

// A checkpoint continues with its layout only, and a curve of losses belongs to it.
TEST(SparseStep, CheckpointsAndCurvesHaveTheKeysOfTheLayout) {
  const Corpus corpus = Corpus::generated(1, 256);
  const auto keys = [&](SparseMode mode) { return checkpoint_keys(trained("tiny", mode), corpus); };
  const zero::Texts variable = keys(SparseMode::variable), dense = keys(SparseMode::none);
  EXPECT_EQ(variable.at("--sparse-attention"), "variable");
  EXPECT_EQ(variable.at("--sparse-attention-num-random-blocks"), "0");
  EXPECT_EQ(variable.at("--sparse-attention-local-window-blocks"), "[4]");
  for (const auto& [key, value] : variable)
    EXPECT_EQ(dense.contains(key), !key.starts_with("--sparse-attention")) << key;
  for (const SparseMode mode : {SparseMode::variable, SparseMode::none})
    EXPECT_EQ(std::ranges::any_of(curve_keys(trained("tiny", mode), corpus),
                                  [](const auto& key) {
                                    return key.first == "sparse_attention.mode" &&
                                           key.second == "variable";
                                  }),
              mode == SparseMode::variable);
  for (const auto& [key, value] : curve_keys(trained("tiny", SparseMode::none), corpus))
    EXPECT_FALSE(key.starts_with("sparse_attention")) << key;
}

TEST(SparseStep, RefusalsNameTheReason) {
  EXPECT_EQ(why_no_step(trained("tiny", SparseMode::fixed)), "accepted");
  expect_words(why_no_step(trained("t5_tiny", SparseMode::fixed)),
               {"sparse_attention requires architecture decoder or encoder"});
  expect_words(
      why_no_step(trained("tiny", SparseMode::fixed, 40)),
      {"seq-length is 40; expected a multiple of sparse_attention.block 16 (example: 48)"});
  TrainingConfig config = trained("tiny", SparseMode::bigbird);
  config.model.sparse_direction = "bidirectional";
  EXPECT_EQ(why_no_step(config),
            "sparse_attention.attention is bidirectional; expected unidirectional with "
            "architecture decoder");
  config = trained("bert_tiny", SparseMode::bigbird);
  config.model.sparse_direction = "unidirectional";
  expect_words(why_no_step(config), {"expected bidirectional with architecture encoder"});
  config = trained("tiny", SparseMode::fixed);
  config.degrees.cp = 2;
  config.activations.use_flash_attn = true;
  expect_words(why_no_step(config),
               {"sparse_attention.mode fixed requires context-parallel-size 1", "(got 2)"});
  config = trained("tiny", SparseMode::fixed);
  config.model.sparse.pattern.horizontal_global_attention = true;
  expect_words(why_no_step(config),
               {"sparse_attention.horizontal_global_attention requires attention bidirectional"});
}

}  // namespace
}  // namespace suite
