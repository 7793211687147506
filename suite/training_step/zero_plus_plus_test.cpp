// ZeRO++ in the training step, by DeepSpeed's keys.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/configured_cases.h"

namespace suite {
namespace {

using configuration::Sources;
using testing::expect_words;

class ZeroPlusPlus : public ::testing::Test {
 protected:
  ConfiguredCases configured(const std::string& keys, const harness::AxisFlags& flags) {
    Sources sources;
    sources.deepspeed_file = folder_.path("ds_config.json");
    testing::write_bytes(sources.deepspeed_file,
                         R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
            "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "zero_optimization": {"stage3_param_persistence_threshold": 100,
                                  "stage3_max_reuse_distance": 0, )" +
                             keys + "}}");
    return configured_cases(sources, {"gpt_step"}, {.flags = flags});
  }
  std::string refusal(const std::string& keys, const harness::AxisFlags& flags) {
    try {
      configured(keys, flags);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  testing::Folder folder_;
};

// Bytes by group, memory, results: a plain step and the passes of a pipeline.
TEST_F(ZeroPlusPlus, AStepWithSecondaryShardsPasses) {
  for (const char* pp : {"1", "2"}) {
    const ConfiguredCases planned = configured(R"("stage": 3, "zero_hpz_partition_size": 2)",
                                               {{"model", "tiny"},
                                                {"transport", "shared_memory"},
                                                {"ranks", *pp == '1' ? "4" : "8"},
                                                {"pipeline-model-parallel-size", pp}});
    EXPECT_EQ(planned.resolved.config.zero.options.plus_plus.hpz_partition_size, 2);
    ASSERT_EQ(planned.cases.size(), 1U);
    for (const harness::Record& record : on_threads::run(planned.cases, 8, 0.001))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
    if (on_threads::sanitized) break;
  }
}

// The same of a step with values in 8 and gradients in 4 bits over two hops.
TEST_F(ZeroPlusPlus, AStepOfAllThreePasses) {
  for (const char* pp : {"1", "2"}) {
    const ConfiguredCases planned =
        configured(R"("stage": 3, "zero_hpz_partition_size": 2, "zero_quantized_weights": true,
                      "zero_quantized_gradients": true, "overlap_comm": true)",
                   {{"model", "tiny"},
                    {"transport", "shared_memory"},
                    {"ranks", *pp == '1' ? "4" : "8"},
                    {"pipeline-model-parallel-size", pp}});
    const zero::PlusPlusOptions& options = planned.resolved.config.zero.options.plus_plus;
    EXPECT_TRUE(options.quantized_weights && options.quantized_gradients);
    ASSERT_EQ(planned.cases.size(), 1U);
    for (const harness::Record& record : on_threads::run(planned.cases, 8, 0.001))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
    if (on_threads::sanitized) break;
  }
}

// dp 4 with recomputation, whose uses stay in the group, too.
TEST_F(ZeroPlusPlus, SecondaryShardsTakeTheSameSteps) {
  const auto train = [](machine::World& world, int size, bool codes = false) {
    TrainingConfig config;
    config.degrees = {.dp = 4};
    set_model(config, "tiny");
    config.activations.recompute_granularity = layers::RecomputeGranularity::full;
    config.batch.global_batch_size = 8;
    config.zero.stage = 3;
    config.zero.param_persistence_threshold = 100;
    config.zero.options.plus_plus = {size, codes};
    const Corpus corpus = Corpus::generated(1, config.model.vocabulary);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(trainer.step().updated);
    return trainer.hash_of_values();
  };
  machine::run_ranks(4, [&](machine::World& world) {
    const std::uint64_t plain = train(world, 1), coded = train(world, 1, true);
    EXPECT_NE(coded, plain);
    for (const int size : {2, 4}) {
      EXPECT_EQ(train(world, size), plain) << size;
      EXPECT_EQ(train(world, size, true), coded) << size;  // the shards have the decoded values
    }
  });
}

TEST_F(ZeroPlusPlus, RefusalsNameTheReason) {
  const harness::AxisFlags four{{"model", "tiny"}, {"ranks", "4"}},
      six{{"model", "tiny"}, {"ranks", "6"}};
  expect_words(refusal(R"("stage": 3, "zero_hpz_partition_size": 4)", six),
               {"zero_hpz_partition_size is 4; expected a divisor of the 6 ranks of dp"});
  expect_words(refusal(R"("stage": 3, "zero_hpz_partition_size": 2, "overlap_comm": false,
                          "offload_param": {"device": "cpu"})",
                       four),
               {"zero_hpz_partition_size 2 requires no offload_param"});
  expect_words(refusal(R"("stage": 3, "zero_quantized_gradients": true}, "prescale_gradients": true,
                          "flops_profiler": {"enabled": false)",
                       four),
               {"zero_quantized_gradients requires prescale_gradients false"});
  // As DeepSpeed's other keys of stage 3: without effect in other stages.
  EXPECT_EQ(configured(R"("stage": 2, "zero_hpz_partition_size": 2)", four)
                .resolved.config.zero.options.plus_plus.hpz_partition_size,
            1);
  EXPECT_FALSE(configured(R"("stage": 2, "zero_quantized_gradients": true)", four)
                   .resolved.config.zero.options.plus_plus.quantized_gradients);
}

}  // namespace
}  // namespace suite
