// What of a configuration reaches the training step, and the learning rates that it names.

#include "suite/configuration/step_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "harness/unit/unit.h"
#include "suite/configuration/sources.h"
#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"
#include "suite/training_step/step_case.h"

namespace suite::configuration {
namespace {

using suite::testing::expect_words;
using suite::testing::Folder;
using suite::testing::write_bytes;

class StepConfig : public ::testing::Test {
 protected:
  void TearDown() override { configured.reset(); }

  Sources of(const std::string& json, const std::string& arguments = "") {
    Sources sources;
    if (!json.empty()) {
      sources.deepspeed_file = folder_.path("ds_config.json");
      write_bytes(sources.deepspeed_file, json);
    }
    if (!arguments.empty()) {
      sources.megatron_file = folder_.path("arguments.txt");
      write_bytes(sources.megatron_file, arguments);
    }
    return sources;
  }
  // The line it is refused with, or what it is run with.
  std::string refusal(const Sources& sources, harness::AxisFlags flags,
                      const std::string& unit = "gpt_step") {
    try {
      use_configuration(sources, {unit}, flags);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  Folder folder_;
};

TEST_F(StepConfig, TakesWhatTheFilesSay) {
  harness::AxisFlags flags{{"ranks", "4"}};
  use_configuration(
      of(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
             "bf16": {"enabled": true}, "gradient_clipping": 0.5,
             "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.95],
                                                      "weight_decay": 0.1, "adam_w_mode": false}},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.004,
                                                          "warmup_num_steps": 4,
                                                          "warmup_type": "linear"}},
             "zero_optimization": {"stage": 2, "reduce_bucket_size": 20000, "overlap_comm": true,
                                   "allgather_bucket_size": 10000, "contiguous_gradients": false}})",
         "--tensor-model-parallel-size 2 --sequence-parallel --num-layers 2 --hidden-size 32 "
         "--num-attention-heads 4 --seq-length 32 --vocab-size 200 --swiglu "
         "--attention-dropout 0.1 --recompute-granularity full"),
      {"gpt_step"}, flags);
  EXPECT_EQ(flags.at("model"), "configured");
  EXPECT_EQ(flags.at("dtype"), "bfloat16");
  EXPECT_EQ(flags.at("zero-stage"), "2");
  EXPECT_EQ(flags.at("tensor-model-parallel-size"), "2");
  EXPECT_EQ(flags.at("data-parallel-size"), "2");
  EXPECT_EQ(flags.at("global-batch-size"), "12");
  EXPECT_EQ(flags.at("sequence-parallel"), "1");
  EXPECT_EQ(flags.at("recompute-granularity"), "full");
  const auto cases = harness::plan_cases({"gpt_step"}, harness::Profile::quick, flags);
  EXPECT_GE(cases.size(), 1U);
  const TrainingConfig& config = *configured;
  EXPECT_EQ(config.options.clip_norm, 0.5);
  EXPECT_EQ(config.reduce_bucket_size, 20000);
  EXPECT_EQ(config.options.allgather_bucket_size, 10000);
  EXPECT_TRUE(config.options.overlap_comm);
  EXPECT_FALSE(config.options.contiguous_gradients);
  const auto& adam = std::get<zero::Adam>(config.options.rule);
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(config.learning_rate->after(2), 0.001);  // a quarter of the way
  EXPECT_TRUE(config.model.swiglu);
  EXPECT_EQ(config.model.attention_dropout, 0.1);
  EXPECT_EQ(config.vocabulary, 200);
  EXPECT_EQ(config.model.vocabulary, 256);
}

TEST_F(StepConfig, ScalesTheLossOfHalf) {
  const auto scale_of = [](const Sources& sources) {
    harness::AxisFlags flags{{"ranks", "1"}};
    use_configuration(sources, {"gpt_step"}, flags);
    EXPECT_EQ(flags.at("dtype"), "half");
    return configured->loss_scale;
  };
  const auto with = [&](const std::string& fp16, const std::string& stage,
                        const std::string& arguments = "") {
    return of(fmt::format(R"({{"train_batch_size": 2, "fp16": {{"enabled": true{}}},
                              "zero_optimization": {{"stage": {}}}}})",
                          fp16, stage),
              arguments);
  };
  zero::LossScaleOptions scale = scale_of(
      with(R"(, "hysteresis": 3, "initial_scale_power": 10, "loss_scale_window": 50)", "1"));
  EXPECT_EQ(scale.scaling, zero::LossScaling::deepspeed_zero);
  EXPECT_EQ(scale.initial_scale, 1024);
  EXPECT_EQ(scale.window, 50);
  EXPECT_EQ(scale.hysteresis, 3);
  scale = scale_of(with("", "0"));
  EXPECT_EQ(scale.scaling, zero::LossScaling::deepspeed_fused);
  EXPECT_EQ(scale.initial_scale, 65536);
  const std::string model =
      "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 ";
  scale = scale_of(of("", model + "--fp16"));
  EXPECT_EQ(scale.scaling, zero::LossScaling::megatron);
  EXPECT_EQ(scale.initial_scale, 4294967296);
  EXPECT_EQ(scale_of(of("", model + "--fp16 --initial-loss-scale 1000")).initial_scale, 1000);
  // What counts is in the record, and nothing beside it that does not.
  const auto echoed = [](const Sources& sources) { return text(resolve(sources)); };
  expect_words(echoed(of("", model + "--fp16")), {"--initial-loss-scale", "4294967296"});
  EXPECT_EQ(echoed(of("", model + "--fp16")).find("initial_scale_power"), std::string::npos);
  const std::string power = R"(, "initial_scale_power": 10)";
  expect_words(echoed(with(power, "0")),
               {"initial_scale_power", "10", "--initial-loss-scale", "1024", "deepspeed_fused"});
  EXPECT_EQ(scale_of(with(power, "0", model + "--initial-loss-scale 1024")).initial_scale, 1024);
  expect_words(refusal(with(power, "0", model + "--initial-loss-scale 1000"), {{"ranks", "1"}}),
               {"fp16.initial_scale_power is 10", "2^10", "--initial-loss-scale is 1000"});
}

// Gradients overflow until the scale has come down: the first steps are skipped, and all are judged
// as ever.
TEST_F(StepConfig, RunsThatOverflowAreJudged) {
  for (const std::string unit : {"gpt_step", "training_speed"}) {
    Sources sources;
    sources.deepspeed_file = SHARDMARK_FIXTURES "/half_overflows.json";
    harness::AxisFlags flags{
        {"ranks", "2"}, {"model", "tiny"}, {"transport", "shared_memory"}, {"schedule", "1f1b"}};
    use_configuration(sources, {unit}, flags);
    const auto cases = harness::plan_cases({unit}, harness::Profile::quick, flags);
    ASSERT_EQ(cases.size(), 1U);
    const harness::Record record = on_threads::run(cases, 2, 0.001).at(0);
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
    if (unit != "gpt_step") continue;
    EXPECT_GE(record.counters.at("skipped_steps"), 2);
    EXPECT_LT(record.counters.at("skipped_steps"), 5);
    EXPECT_LT(record.losses.back(), record.losses.front());
  }
}

// The two T5 files as they stand.
TEST_F(StepConfig, RunsWithStatesAndValuesElsewhere) {
  for (const bool three : {false, true}) {
    Sources sources;
    sources.deepspeed_file =
        fmt::format("{}/t5_zero{}_offload.json", SHARDMARK_FIXTURES, three ? 3 : 2);
    harness::AxisFlags flags{{"ranks", "2"}, {"model", "tiny"}};
    use_configuration(sources, {"gpt_step"}, flags);
    EXPECT_EQ(flags.at("zero-stage"), three ? "3" : "2");
    EXPECT_EQ(flags.at("offload_optimizer"), "cpu");
    EXPECT_EQ(flags.at("offload_param"), three ? "cpu" : "none");
    EXPECT_EQ(harness::plan_cases({"gpt_step"}, harness::Profile::quick, flags).size(), 2U);
  }
  harness::AxisFlags flags{{"ranks", "1"}};
  use_configuration(of(R"({"train_batch_size": 4, "aio": {"block_size": 8192, "queue_depth": 4},
             "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme",
                                   "nvme_path": "/nvme", "buffer_count": 3, "buffer_size": 5000,
                                   "max_in_cpu": 70}}})"),
                    {"gpt_step"}, flags);
  EXPECT_EQ(flags.at("offload_param"), "nvme");
  EXPECT_EQ(flags.at("offload_optimizer"), "none");
  const zero::ValueOptions& values = configured->options.offload_param;
  EXPECT_EQ(values.swap.folder, "/nvme");
  EXPECT_EQ(values.swap.io.block_size, 8192U);
  EXPECT_EQ(values.swap.io.queue_depth, 4);
  EXPECT_EQ(values.buffer_count, 3);
  EXPECT_EQ(values.buffer_size, 5000);
  EXPECT_EQ(values.max_in_cpu, 70);
}

TEST_F(StepConfig, RefusesByName) {
  expect_words(refusal(of(R"({"train_batch_size": 4, "zero_optimization": {"stage": 3,
                              "offload_optimizer": {"device": "cpu", "ratio": 0.5},
                              "offload_param": {"device": "cpu"}}})"),
                       {{"ranks", "1"}}),
               {"offload_param cpu with ratio 0.5", "ratio 1"});
  const Sources two = of(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  EXPECT_EQ(refusal(two, {{"ranks", "2"}}), "accepted");
  EXPECT_EQ(refusal(two, {{"ranks", "2"}, {"zero-stage", "2"}}), "accepted");
  expect_words(refusal(two, {{"ranks", "2"}, {"zero-stage", "1"}}),
               {"--zero-stage is 1", "ds_config.json makes it 2"});
  expect_words(refusal(two, {{"ranks", "2"}, {"seq-length", "8"}}), {"--seq-length is 8"});
  for (const char* key : {R"("reduce_scatter": false)", R"("allgather_partitions": false)",
                          R"("round_robin_gradients": true)", R"("stage3_max_reuse_distance": 5)"})
    expect_words(refusal(of(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, )" +
                            std::string(key) + "}}"),
                         {{"ranks", "2"}}),
                 {"no step here does that"});
  expect_words(refusal(two, {}), {"say --ranks N"});
  expect_words(refusal(two, {{"ranks", "1,2"}}), {"say --ranks N"});
  expect_words(refusal(two, {{"ranks", "3"}}), {"train_batch_size"});
  expect_words(refusal(two, {{"ranks", "2"}}, "all_reduce"), {"gpt_step or training_speed"});
  expect_words(refusal(two, {{"ranks", "2"}, {"model", "smal"}}), {"smal", "small"});
  expect_words(refusal(of(R"({"train_batch_size": 8, "communication_data_type": "fp16"})"),
                       {{"ranks", "2"}}),
               {"communication_data_type fp16", "zero_step"});
  expect_words(refusal(of("",
                          "--num-layers 2 --hidden-size 32 --num-attention-heads 4 "
                          "--seq-length 8 --vocab-size 64 --context-parallel-size 2"),
                       {{"ranks", "2"}}),
               {"context parallelism"});
  expect_words(refusal(of("",
                          "--num-layers 3 --hidden-size 32 --num-attention-heads 4 "
                          "--seq-length 8 --vocab-size 64 --pipeline-model-parallel-size 2"),
                       {{"ranks", "2"}}),
               {"num-layers 3"});
}

TEST_F(StepConfig, LayersGoOverStagesAsDeepSpeedsPartitionSays) {
  const auto method = [&](const std::string& partition, harness::AxisFlags axes) {
    use_configuration(of(R"({"train_batch_size": 8, "pipeline": {"stages": 2, "partition": ")" +
                         partition + R"("}})"),
                      {"gpt_step"}, axes);
    return configured->partition_method + " " + axes["partition-method"];
  };
  EXPECT_EQ(method("best", {{"ranks", "2"}}), "uniform ");
  EXPECT_EQ(method("uniform", {{"ranks", "2"}, {"partition-method", "uniform"}}),
            "uniform uniform");
  EXPECT_EQ(method("parameters", {{"ranks", "2"}}), "parameters parameters");
  EXPECT_THROW(method("parameters", {{"ranks", "2"}, {"partition-method", "uniform"}}),
               harness::UsageError);
  EXPECT_THROW(method("parameter", {{"ranks", "2"}}), harness::UsageError);
}

TEST_F(StepConfig, VirtualStagesInterleave) {
  const auto given = [&](const std::string& words, const char* sequences = "4") {
    return of("",
              "--num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 8 "
              "--vocab-size 64 --micro-batch-size 1 --global-batch-size " +
                  std::string(sequences) + " " + words);
  };
  const std::string two = "--pipeline-model-parallel-size 2 ";
  for (const char* words :
       {"--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 4"}) {
    harness::AxisFlags axes{{"ranks", "2"}};
    use_configuration(given(two + words), {"gpt_step"}, axes);
    EXPECT_EQ(configured->schedule, "interleaved_1f1b");
    EXPECT_EQ(configured->virtual_stages, 4);
    EXPECT_EQ(axes.at("schedule"), "interleaved_1f1b");
    EXPECT_EQ(axes.at("num-virtual-stages-per-pipeline-rank"), "4");
  }
  const auto refused = [&](const std::string& words, harness::AxisFlags axes = {}) {
    axes["ranks"] = "2";
    return refusal(given(words), axes);
  };
  EXPECT_EQ(refused(two + "--num-layers-per-virtual-pipeline-stage 4", {{"schedule", "zb_v"}}),
            "accepted");
  expect_words(refused(two + "--num-virtual-stages-per-pipeline-rank 2", {{"schedule", "zb_v"}}),
               {"--schedule is zb_v", "interleaved_1f1b"});
  expect_words(refused(two + "--num-layers-per-virtual-pipeline-stage 3"),
               {"--num-layers-per-virtual-pipeline-stage is 3", "4 layers of a stage"});
  expect_words(refused(two + "--num-virtual-stages-per-pipeline-rank 3"),
               {"--num-virtual-stages-per-pipeline-rank is 3", "4 layers of a stage"});
  expect_words(refused(two + "--num-layers-per-virtual-pipeline-stage 1 "
                             "--num-virtual-stages-per-pipeline-rank 2"),
               {"virtual-pipeline-stage is 1", "4 virtual stages",
                "--num-virtual-stages-per-pipeline-rank is 2"});
  expect_words(refused("--num-virtual-stages-per-pipeline-rank 2"),
               {"--pipeline-model-parallel-size above 1"});
  expect_words(
      refusal(given(two + "--num-virtual-stages-per-pipeline-rank 2", "3"), {{"ranks", "2"}}),
      {"interleaved_1f1b", "m % p == 0"});
}

TEST(LearningRate, AsDeepSpeedHasIt) {
  LearningRate rate{.style = "WarmupLR", .highest = 1, .lowest = 0.5, .warmup = 8};
  EXPECT_EQ(rate.after(0), 0.5);  // before the schedule begins
  EXPECT_EQ(rate.after(1), 0.5);
  EXPECT_DOUBLE_EQ(rate.after(2), 0.5 + 0.5 / 3);  // log 2 / log 8
  EXPECT_DOUBLE_EQ(rate.after(8), 1);
  EXPECT_EQ(rate.after(100), 1);
  rate.logarithmic_warmup = false;
  EXPECT_DOUBLE_EQ(rate.after(5), 0.75);
  rate.style = "WarmupDecayLR";
  rate.total = 16;
  EXPECT_DOUBLE_EQ(rate.after(9), 1);
  EXPECT_DOUBLE_EQ(rate.after(13), 0.75);
  EXPECT_EQ(rate.after(40), 0.5);
  rate = {.style = "WarmupCosineLR",
          .highest = 2,
          .warmup = 4,
          .total = 14,
          .logarithmic_warmup = false,
          .warmup_min_ratio = 0.5,
          .cosine_min_ratio = 0.1};
  EXPECT_EQ(rate.after(0), 0);
  EXPECT_DOUBLE_EQ(rate.after(3), 1.5);
  EXPECT_DOUBLE_EQ(rate.after(9), 2 * (0.1 + 0.9 * 0.5));  // five of ten
  EXPECT_DOUBLE_EQ(rate.after(30), 0.2);
}

TEST(LearningRate, AsMegatronHasIt) {
  LearningRate rate{.style = "linear", .highest = 1, .lowest = 0.2, .warmup = 4, .total = 12};
  EXPECT_EQ(rate.after(0), 0);
  EXPECT_DOUBLE_EQ(rate.after(1), 0.25);
  EXPECT_DOUBLE_EQ(rate.after(8), 0.6);
  EXPECT_EQ(rate.after(13), 0.2);
  rate.style = "cosine";
  EXPECT_DOUBLE_EQ(rate.after(8), 0.6);
  EXPECT_DOUBLE_EQ(rate.after(6), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  rate.style = "inverse-square-root";
  EXPECT_DOUBLE_EQ(rate.after(9), 2. / 3);
  rate.style = "megatron-constant";
  EXPECT_EQ(rate.after(2), 0.5);
  EXPECT_EQ(rate.after(99), 1);
  rate.style = "none";
  EXPECT_THROW(rate.after(0), std::invalid_argument);
}

}  // namespace
}  // namespace suite::configuration
