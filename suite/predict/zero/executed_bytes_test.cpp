// The bytes that predict counts are those that the training step sends.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/predict/step.h"
#include "suite/trainer/trainer.h"
#include "zero/stages/compressed_reduction.h"

namespace suite::predict {
namespace {

using Bytes = std::map<std::string, double>;  // by group

TrainingConfig small(machine::Degrees degrees, int stage = 0) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.model.hidden = 128;  // a layer is a multiple of 128 elements, so that nothing is padded
  config.degrees = degrees;
  config.batch.global_batch_size = 2 * degrees.dp;
  config.precision.dtype = machine::Dtype::bfloat16;
  config.zero.stage = stage;
  config.zero.overlap_comm = false;
  config.zero.param_persistence_threshold = 200;
  return config;
}

// This program's software, as `run --expect` predicts it.
Software own() {
  return {
      .name = "shardmark", .source = "", .gradient_bytes = 4, .gathers = 3, .optimizer_bytes = 46};
}

Bytes predicted(const TrainingConfig& config) {
  const Cluster cluster = read_cluster("dgx_h100");
  Bytes bytes;
  for (const GroupTime& one : predict_step(config, cluster, own()).groups)
    bytes[one.group] = one.bytes;
  return bytes;
}

// Returns the last of `steps` steps of the rank of the slowest stage that sends the most. exact:
// also the sums of doubles.
Bytes executed(const TrainingConfig& config, int steps = 1, bool exact = true) {
  const int stage = predict_step(config, read_cluster("dgx_h100"), own()).slowest_stage;
  std::vector<Bytes> of_ranks(static_cast<std::size_t>(config.degrees.ranks()));
  machine::run_ranks(config.degrees.ranks(), [&](machine::World& world) {
    const Corpus corpus = Corpus::generated(1, config.model.vocabulary);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    for (int step = 0; step < steps; ++step) {
      trainer.optimizer_step().wait_for_values();
      for (const Trainer::Group& group : trainer.groups())
        for (machine::Link* link : group.links()) link->reset_traffic();
      EXPECT_TRUE(trainer.step().updated);
    }
    trainer.optimizer_step().wait_for_values();
    Bytes& bytes = of_ranks[static_cast<std::size_t>(world.rank())];
    for (const Trainer::Group& group : trainer.groups())
      for (machine::Link* link : group.links())
        for (const auto& [label, traffic] : link->traffic())
          if (trainer.grid().coordinate(machine::Axis::pp) == stage &&
              (exact || label.dtype != machine::Dtype::float64))
            bytes[group.name] += static_cast<double>(traffic.bytes_sent);
  });
  Bytes most;
  for (const Bytes& bytes : of_ranks)
    for (const auto& [group, sent] : bytes)
      if (sent > 0) most[group] = std::max(most[group], sent);
  return most;
}

void expect_executed(const TrainingConfig& config, int steps = 1) {
  EXPECT_EQ(predicted(config), executed(config, steps));
}

// The closed forms leave out the norm's doubles and padding. Stage 3 is declared.
TEST(ExecutedBytes, OfUsualKeys) {
  for (const int stage : {0, 1, 2}) {
    SCOPED_TRACE(stage);
    const TrainingConfig config = small({.dp = 2}, stage);
    EXPECT_EQ(predicted(config), executed(config, 1, false));
  }
  TrainingConfig config = small({.dp = 2}, 1);
  config.zero.communication_data_type = "bf16";
  EXPECT_EQ(predicted(config), executed(config, 1, false));
  config = small({.dp = 4}, 3);
  expect_executed(config);
  config.zero.param_persistence_threshold = TrainingConfig::Zero().param_persistence_threshold;
  expect_executed(config);
}

TEST(ExecutedBytes, OfPipelines) {
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zb_v"})
    for (const int stage : {0, 1, 3}) {
      SCOPED_TRACE(::testing::Message() << schedule << " stage " << stage);
      TrainingConfig config = small({.dp = 2, .pp = 2}, stage);
      config.model.layers = 4;
      config.pipeline.schedule = schedule;
      config.optimizer.type = "lamb";  // declares stages 0 and 1, too
      config.batch.global_batch_size = 8;
      expect_executed(config);
    }
}

TEST(ExecutedBytes, OfZeroPlusPlus) {
  for (const int hpz : {1, 2})
    for (const bool weights : {false, true})
      for (const bool gradients : {false, true}) {
        SCOPED_TRACE(::testing::Message() << hpz << weights << gradients);
        TrainingConfig config = small({.dp = 4}, 3);
        config.zero.options.plus_plus = {hpz, weights, gradients};
        expect_executed(config);
      }
  TrainingConfig config = small({.tp = 2, .dp = 2}, 3);
  config.zero.options.plus_plus = {2, true, true};
  expect_executed(config);
  config.activations.recompute_granularity = layers::RecomputeGranularity::full;
  expect_executed(config);
}

TEST(ExecutedBytes, OfEveryOptimizer) {
  for (const char* type : {"lamb", "muon", "adafactor", "one_bit_adam", "one_bit_lamb"})
    for (const machine::Degrees degrees :
         {machine::Degrees{.dp = 4}, machine::Degrees{.tp = 2, .dp = 2}})
      for (const int stage : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << type << " tp " << degrees.tp << " stage " << stage);
        TrainingConfig config = small(degrees, stage);
        config.optimizer.type = type;
        config.optimizer.freeze_step = 1;
        if (config.optimizer.is_one_bit() && stage > 0) continue;
        expect_executed(config, config.optimizer.is_one_bit() ? 3 : 1);
      }
}

TEST(ExecutedBytes, OfTokensThatDoNotAllCount) {
  TrainingConfig config = small({.dp = 4}, 3);
  config.uneven_tokens = true;
  config.batch.global_batch_size = 16;
  expect_executed(config);
}

TEST(ExecutedBytes, OfCompressedGradients) {
  TrainingConfig config = small({.dp = 4}, 1);
  for (const std::string& algorithm : zero::gradient_compressions()) {
    if (algorithm == "deviation") continue;  // its bytes depend on the values
    SCOPED_TRACE(algorithm);
    config.zero.options.gradient_compression.algorithm = algorithm;
    expect_executed(config);
  }
}

TEST(ExecutedBytes, OfFrozenParametersAndThresholds) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    TrainingConfig config = small({.dp = 4}, stage);
    config.frozen = "blocks.0.*";
    expect_executed(config);
  }
  TrainingConfig config = small({.dp = 4}, 3);
  config.zero.param_persistence_threshold = 20'000;
  config.zero.options.stage3_max_reuse_distance = 100'000;
  expect_executed(config, 2);  // the first step keeps nothing
  config = small({.dp = 4}, 2);
  config.zero.options.reduce_scatters = false;
  expect_executed(config);
}

TEST(ExecutedBytes, OfProductsIn8Bits) {
  for (const auto recipe :
       {layers::Fp8Recipe::delayed, layers::Fp8Recipe::tensorwise, layers::Fp8Recipe::mxfp8}) {
    SCOPED_TRACE(name(recipe));
    TrainingConfig config = small({.tp = 2, .dp = 2});
    config.optimizer.type = "lamb";  // counts the norm's doubles, too
    config.activations.sequence_parallel = true;
    config.model.sequence = 64;  // a rank has whole blocks of 32 rows
    config.fp8 = {.format = layers::Fp8Format::hybrid, .recipe = recipe};
    expect_executed(config);
  }
}

TEST(ExecutedBytes, OfContextParallelism) {
  for (const auto type : {layers::CpCommType::p2p, layers::CpCommType::all_gather,
                          layers::CpCommType::a2a, layers::CpCommType::a2a_p2p})
    for (const auto recompute :
         {layers::RecomputeGranularity::none, layers::RecomputeGranularity::selective,
          layers::RecomputeGranularity::full}) {
      SCOPED_TRACE(::testing::Message() << name(type) << " " << name(recompute));
      TrainingConfig config = small({.cp = 4});
      config.optimizer.type = "lamb";
      config.context = {.comm_type = type, .a2a_size = 2};
      config.activations.use_flash_attn = true;
      config.activations.recompute_granularity = recompute;
      Bytes all = executed(config);
      // predict has one row for both groups of a2a+p2p.
      for (const char* part : {"cp_a2a", "cp_p2p"}) {
        if (all.contains(part)) all["cp"] += all[part];
        all.erase(part);
      }
      EXPECT_EQ(predicted(config), all);
    }
}

TEST(ExecutedBytes, OfFpdt) {
  for (const auto recompute :
       {layers::RecomputeGranularity::none, layers::RecomputeGranularity::full}) {
    TrainingConfig config = small({.cp = 4});
    config.context = {.comm_type = layers::CpCommType::a2a,
                      .order = layers::SequenceOrder::striped,
                      .fpdt = true,
                      .fpdt_chunk_size = 8,
                      .fpdt_offloading = true};
    config.activations.use_flash_attn = true;
    config.activations.recompute_granularity = recompute;
    EXPECT_EQ(predicted(config), executed(config));
  }
}

}  // namespace
}  // namespace suite::predict
