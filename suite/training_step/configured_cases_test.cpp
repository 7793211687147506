// The keys of a configuration that reach the training step.

#include "suite/training_step/configured_cases.h"
#include "harness/json/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"

namespace suite {
namespace {

using configuration::Sources;
using testing::expect_words;
using testing::Folder;
using testing::write_bytes;

class ConfiguredStep : public ::testing::Test {
 protected:
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
  static ConfiguredCases run(const Sources& sources, const harness::AxisFlags& flags,
                             const std::string& unit = "gpt_step") {
    return configured_cases(sources, {unit}, {.flags = flags});
  }
  static TrainingConfig config(const Sources& sources, const harness::AxisFlags& flags) {
    return run(sources, flags).resolved.config;
  }
  // Returns the error message, or "accepted".
  static std::string refusal(const Sources& sources, const harness::AxisFlags& flags,
                             const std::string& unit = "gpt_step") {
    try {
      run(sources, flags, unit);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  Folder folder_;
};

std::map<std::string, std::string> axes(const harness::PlannedCase& planned) {
  return {planned.axes.begin(), planned.axes.end()};
}

const std::string tiny_model =
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 ";

TEST_F(ConfiguredStep, UsesTheValuesOfTheFiles) {
  const ConfiguredCases planned =
      run(of(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
             "bf16": {"enabled": true}, "gradient_clipping": 0.5,
             "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.95],
                                                      "weight_decay": 0.1, "adam_w_mode": false}},
             "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.004,
                                                          "warmup_num_steps": 4,
                                                          "warmup_type": "linear"}},
             "zero_optimization": {"stage": 2, "reduce_bucket_size": 20000, "overlap_comm": true,
                                   "allgather_bucket_size": 10000, "contiguous_gradients": false}})",
             "--tensor-model-parallel-size 2 --sequence-parallel --vocab-size 200 --swiglu "
             "--attention-dropout 0.1 --recompute-granularity full " +
                 tiny_model),
          {{"ranks", "4"}});
  ASSERT_EQ(planned.cases.size(), 1U);
  const auto flags = axes(planned.cases[0]);
  EXPECT_EQ(flags.at("model"), "configured");
  EXPECT_EQ(flags.at("dtype"), "bfloat16");
  EXPECT_EQ(flags.at("zero-stage"), "2");
  EXPECT_EQ(flags.at("tensor-model-parallel-size"), "2");
  EXPECT_EQ(flags.at("data-parallel-size"), "2");
  EXPECT_EQ(flags.at("global-batch-size"), "12");
  EXPECT_EQ(flags.at("sequence-parallel"), "on");
  EXPECT_EQ(flags.at("recompute-granularity"), "full");
  const TrainingConfig& config = planned.resolved.config;
  const zero::StepOptions options = config.step_options();
  EXPECT_EQ(options.clip_norm, 0.5);
  EXPECT_EQ(config.zero.reduce_bucket_size, 20000);
  EXPECT_EQ(options.allgather_bucket_size, 10000);
  EXPECT_TRUE(options.overlap_comm);
  EXPECT_FALSE(options.contiguous_gradients);
  const auto& adam = std::get<zero::Adam>(options.rule);
  EXPECT_EQ(adam.beta1, 0.8);
  EXPECT_EQ(adam.weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(config.learning_rate().after(2), 0.001);  // a quarter of the way
  EXPECT_TRUE(config.model.swiglu);
  EXPECT_EQ(config.model.attention_dropout, 0.1);
  EXPECT_EQ(config.model.tokens, 200);
  EXPECT_EQ(config.model.vocabulary, 256);
}

TEST_F(ConfiguredStep, OnCudaUsesTransportsBetweenDevices) {
  const auto transports = [](const Sources& sources, harness::AxisFlags flags) {
    flags.insert({{"ranks", "2"}, {"model", "tiny"}});
    std::set<std::string> found;
    for (const harness::PlannedCase& planned :
         configured_cases(sources, {"gpt_step"},
                          {.flags = flags, .device = machine::Device::Kind::cuda})
             .cases)
      found.insert(axes(planned).at("transport"));
    return found;
  };
  using Names = std::set<std::string>;
  const auto with = [&](const std::string& overlap) {
    return of(R"({"train_batch_size": 4,
                  "zero_optimization": {"stage": 2, "overlap_comm": )" +
              overlap + "}}");
  };
  EXPECT_EQ(transports(with("false"), {}), (Names{"cuda_ipc", "nccl"}));
  EXPECT_EQ(transports(with("false"), {{"transport", "mpi"}}), Names{"mpi"});
  EXPECT_EQ(transports(with("true"), {}), (Names{"cuda_ipc", "nccl"}));
}

TEST_F(ConfiguredStep, ConfiguresLossScalingForHalf) {
  const auto scale_of = [](const Sources& sources) {
    const TrainingConfig config = ConfiguredStep::config(sources, {{"ranks", "1"}});
    EXPECT_EQ(config.precision.dtype, machine::Dtype::float16);
    return config.precision.loss_scale;
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
  scale = scale_of(with(R"(, "loss_scale": 128)", "1"));
  EXPECT_EQ(scale.scaling, zero::LossScaling::constant);
  EXPECT_EQ(scale.initial_scale, 128);
  scale = scale_of(of("", tiny_model + "--fp16"));
  EXPECT_EQ(scale.scaling, zero::LossScaling::megatron);
  EXPECT_EQ(scale.initial_scale, 4294967296);
  EXPECT_EQ(scale_of(of("", tiny_model + "--fp16 --initial-loss-scale 1000")).initial_scale, 1000);
  // The record has only keys that have an effect.
  const auto echoed = [](const Sources& sources) { return text(resolve(sources)); };
  expect_words(echoed(of("", tiny_model + "--fp16")), {"--initial-loss-scale", "4294967296"});
  EXPECT_EQ(echoed(of("", tiny_model + "--fp16")).find("initial_scale_power"), std::string::npos);
  const std::string power = R"(, "initial_scale_power": 10)";
  expect_words(echoed(with(power, "0")),
               {"initial_scale_power", "10", "--initial-loss-scale", "1024", "deepspeed_fused"});
  EXPECT_EQ(scale_of(with(power, "0", tiny_model + "--initial-loss-scale 1024")).initial_scale,
            1024);
  expect_words(
      refusal(with(power, "0", tiny_model + "--initial-loss-scale 1000"), {{"ranks", "1"}}),
      {"fp16.initial_scale_power is 10", "2^10", "--initial-loss-scale is 1000"});
}

// Gradients overflow until the loss scale is small enough. The first steps are skipped, and all
// steps are judged as usual.
TEST_F(ConfiguredStep, RunsThatOverflowAreJudged) {
  for (const std::string unit : {"gpt_step", "training_speed"}) {
    Sources sources;
    sources.deepspeed_file = SHARDMARK_FIXTURES "/half_overflows.json";
    const auto cases = run(sources, {{"ranks", "2"}, {"model", "tiny"}}, unit).cases;
    ASSERT_EQ(cases.size(), 1U);
    const harness::Record record = on_threads::run(cases, 2, 0.001).at(0);
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
    if (unit != "gpt_step") continue;
    // Gradients are half by DeepSpeed's default, and of the sum of the losses: they overflow at a
    // scale that is lower by the number of tokens than that of activations.
    EXPECT_GE(record.counters.at("skipped_steps"), 2);
    EXPECT_LT(record.counters.at("skipped_steps"), 5);
    EXPECT_LT(record.losses.back(), record.losses.front());
  }
}

// The two T5 files, unchanged.
TEST_F(ConfiguredStep, RunsWithOffloadedStatesAndParameters) {
  for (const bool three : {false, true}) {
    Sources sources;
    sources.deepspeed_file =
        fmt::format("{}/t5_zero{}_offload.json", SHARDMARK_FIXTURES, three ? 3 : 2);
    const auto cases = run(sources, {{"ranks", "2"}, {"model", "tiny"}}).cases;
    ASSERT_EQ(cases.size(), 1U);
    EXPECT_EQ(axes(cases[0]).at("zero-stage"), three ? "3" : "2");
    EXPECT_EQ(axes(cases[0]).at("offload_optimizer"), "cpu");
    EXPECT_EQ(axes(cases[0]).at("offload_param"), three ? "cpu" : "none");
  }
  const zero::ValueOptions values =
      config(of(R"({"train_batch_size": 4, "aio": {"block_size": 8192, "queue_depth": 4},
             "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme",
                                   "nvme_path": "/nvme", "buffer_count": 3, "buffer_size": 5000,
                                   "max_in_cpu": 70}}})"),
             {{"ranks", "1"}})
          .step_options()
          .offload_param;
  EXPECT_EQ(values.device, zero::OffloadDevice::nvme);
  EXPECT_EQ(values.swap.folder, "/nvme");
  EXPECT_EQ(values.swap.io.block_size, 8192U);
  EXPECT_EQ(values.swap.io.queue_depth, 4);
  EXPECT_EQ(values.buffer_count, 3);
  EXPECT_EQ(values.buffer_size, 5000);
  EXPECT_EQ(values.max_in_cpu, 70);
}

// An update writes the values from the gradients of the previous update. The first update changes
// nothing, so the second step has the loss of the initial values.
TEST_F(ConfiguredStep, UpdatesMayBeDelayed) {
  const auto losses = [&](const std::string& delayed) {
    const auto cases = run(of(R"({"train_batch_size": 4, "zero_optimization": {"stage": 2,
                   "offload_optimizer": {"device": "cpu", "delayed_update": )" +
                              delayed + "}}}"),
                           {{"ranks", "2"}, {"model", "tiny"}})
                           .cases;
    const harness::Record record = on_threads::run(cases, 2, 0.001).at(0);
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
    return record.losses;
  };
  const std::vector<double> usual = losses("false"), delayed = losses("true");
  EXPECT_EQ(delayed.at(0), usual.at(0));
  EXPECT_GT(delayed.at(1), usual.at(1));
  EXPECT_LT(delayed.back(), delayed.front());
}

// The volume oracle expects one broadcast of each owner for each bucket. The bits are the same.
TEST_F(ConfiguredStep, ValuesMayBeBroadcastByTheirOwners) {
  for (const char* stage : {"1", "2"}) {
    const auto losses = [&](const std::string& gathers) {
      const auto cases = run(of(fmt::format(R"({{"train_batch_size": 6, "zero_optimization": {{
                                  "stage": {}, "allgather_partitions": {}}}}})",
                                            stage, gathers)),
                             {{"ranks", "3"}, {"model", "tiny"}})
                             .cases;
      const harness::Record record = on_threads::run(cases, 3, 0.001).at(0);
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
      return record.losses;
    };
    EXPECT_EQ(losses("false"), losses("true")) << stage;
  }
}

TEST_F(ConfiguredStep, AxesMaySetKeysAbsentFromTheFiles) {
  const Sources two = of(R"({"train_batch_size": 8, "zero_optimization": {"stage": 1}})");
  const TrainingConfig cut =
      config(two, {{"ranks", "4"}, {"tensor-model-parallel-size", "2"}, {"dtype", "bfloat16"}});
  EXPECT_EQ(cut.degrees.tp, 2);
  EXPECT_EQ(cut.degrees.dp, 2);
  EXPECT_EQ(cut.precision.dtype, machine::Dtype::bfloat16);
  EXPECT_EQ(config(two, {{"ranks", "2"}, {"zero-stage", "1"}}).zero.stage, 1);
  EXPECT_EQ(config(two, {{"ranks", "1"}, {"seq-length", "8"}}).model.sequence, 8);
  // Lists give every valid combination, without duplicates.
  const ConfiguredCases several = run(
      two, {{"ranks", "1,2,4"}, {"tensor-model-parallel-size", "1,2"}, {"dtype", "float,half"}});
  std::set<std::string> grids;
  for (const harness::PlannedCase& planned : several.cases)
    grids.insert(axes(planned).at("ranks") + axes(planned).at("tensor-model-parallel-size") +
                 axes(planned).at("data-parallel-size"));
  EXPECT_EQ(several.cases.size(), 10U);
  EXPECT_EQ(grids, (std::set<std::string>{"111", "212", "221", "414", "422"}));
  expect_words(refusal(two, {{"ranks", "1,2"}, {"tensor-model-parallel-size", "1,4"}}),
               {"tensor-model-parallel-size 4"});
}

TEST_F(ConfiguredStep, AConflictWithAFileNamesBothValues) {
  const Sources two = of(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  expect_words(refusal(two, {{"ranks", "2"}, {"zero-stage", "1"}}),
               {"ds_config.json: zero_optimization.stage is 2", "--zero-stage is 1"});
  expect_words(refusal(two, {{"ranks", "2"}, {"data-parallel-size", "1"}}),
               {"--data-parallel-size is 1", "is 2"});
  expect_words(refusal(two, {{"ranks", "2"}, {"cpu-checkpointing", "1"}}),
               {"--cpu-checkpointing true requires --recompute-granularity full"});
  expect_words(refusal(two, {{"ranks", "2"}, {"schedul", "1f1b"}}), {"schedul", "schedule"});
  expect_words(refusal(two, {{"ranks", "2"}, {"zero-stage", "many"}}), {"zero-stage", "many"});
}

TEST_F(ConfiguredStep, RejectsInvalidKeysByName) {
  expect_words(refusal(of(R"({"train_batch_size": 4, "zero_optimization": {"stage": 3,
                              "offload_optimizer": {"device": "cpu", "ratio": 0.5},
                              "offload_param": {"device": "cpu"}}})"),
                       {{"ranks", "1"}}),
               {"offload_param cpu with ratio 0.5", "ratio 1"});
  const Sources two = of(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
  EXPECT_EQ(refusal(two, {{"ranks", "2"}}), "accepted");
  expect_words(refusal(two, {}), {"give --ranks N"});
  expect_words(refusal(two, {{"ranks", "3"}}), {"train_batch_size"});
  expect_words(refusal(two, {{"ranks", "2"}}, "all_reduce"), {"gpt_step or training_speed"});
  expect_words(refusal(two, {{"ranks", "2"}, {"model", "smal"}}), {"smal", "small"});
  expect_words(refusal(of(R"({"train_batch_size": 8, "bf16": {"enabled": true},
                              "data_types": {"grad_accum_dtype": "fp16"}})"),
                       {{"ranks", "2"}}),
               {"grad_accum_dtype is fp16; expected fp32 or the dtype of the values (bfloat16)"});
  expect_words(refusal(of("", tiny_model + "--context-parallel-size 2"), {{"ranks", "2"}}),
               {"context-parallel-size 2", "use-flash-attn"});
  expect_words(refusal(of("", tiny_model + "--context-parallel-size 2 --use-flash-attn "
                                           "--attention-dropout 0.1"),
                       {{"ranks", "2"}}),
               {"context-parallel-size 2 requires attention-dropout 0 (got 0.1)"});
  expect_words(refusal(of("", tiny_model + "--max-position-embeddings 64"), {{"ranks", "1"}}),
               {"--max-position-embeddings 64", "--seq-length rows"});
  expect_words(refusal(of("",
                          "--num-layers 3 --hidden-size 32 --num-attention-heads 4 "
                          "--seq-length 8 --vocab-size 64 --pipeline-model-parallel-size 2"),
                       {{"ranks", "2"}}),
               {"num-layers 3"});
}

TEST_F(ConfiguredStep, KeysWithoutEffectAreRecordedAsIgnored) {
  const ConfiguredCases planned =
      run(of(R"({"train_batch_size": 8, "steps_per_print": 10,
             "activation_checkpointing": {"cpu_checkpointing": true, "partition_activations": true},
             "aio": {"thread_count": 4, "block_size": 4096},
             "zero_optimization": {"stage": 2, "sub_group_size": 5000,
                                   "offload_optimizer": {"device": "cpu", "pin_memory": true}}})",
             tiny_model + "--log-interval 5 --transformer-impl local --no-masked-softmax-fusion"),
          {{"ranks", "2"}});
  EXPECT_FALSE(planned.resolved.config.activations.cpu_checkpointing);
  EXPECT_FALSE(planned.resolved.config.activations.distribute_saved_activations);
  EXPECT_EQ(axes(planned.cases.at(0)).at("cpu-checkpointing"), "off");
  const auto record = harness::Json::parse(json(planned.resolved));
  for (const char* key :
       {"steps_per_print", "activation_checkpointing.cpu_checkpointing",
        "activation_checkpointing.partition_activations", "aio.intra_op_parallelism",
        "aio.block_size", "zero_optimization.sub_group_size", "--log-interval",
        "--transformer-impl", "--no-masked-softmax-fusion"}) {
    EXPECT_FALSE(record.at("keys").contains(key)) << key;
    EXPECT_TRUE(record.at("ignored").contains(key)) << key;
  }
  EXPECT_TRUE(record.at("keys").contains("zero_optimization.offload_optimizer.pin_memory"));
  EXPECT_EQ(record.at("ignored").at("aio.block_size").at("value"), "4096");
  expect_words(record.at("ignored").at("aio.block_size").at("why").get<std::string>(), {"nvme"});
  std::string warnings;
  for (const std::string& warning : planned.resolved.warnings) warnings += warning + "\n";
  expect_words(warnings, {"steps_per_print (10) has no effect here", "--transformer-impl",
                          "no effect, requires --recompute-granularity full",
                          "activation_checkpointing.cpu_checkpointing"});
}

TEST_F(ConfiguredStep, DeepSpeedsPartitionSelectsTheMethod) {
  const auto method = [&](const std::string& partition, const harness::AxisFlags& axes) {
    return config(of(R"({"train_batch_size": 8, "pipeline": {"stages": 2, "partition": ")" +
                     partition + R"("}})"),
                  axes)
        .pipeline.partition_method;
  };
  EXPECT_EQ(method("best", {{"ranks", "2"}}), "uniform");
  EXPECT_EQ(method("uniform", {{"ranks", "2"}, {"partition-method", "uniform"}}), "uniform");
  EXPECT_EQ(method("parameters", {{"ranks", "2"}}), "parameters");
  EXPECT_THROW(method("parameters", {{"ranks", "2"}, {"partition-method", "uniform"}}),
               harness::UsageError);
  EXPECT_THROW(method("parameter", {{"ranks", "2"}}), harness::UsageError);
}

TEST_F(ConfiguredStep, VirtualStagesInterleave) {
  const auto given = [&](const std::string& words, const char* sequences = "4") {
    return of("",
              "--num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 8 "
              "--vocab-size 64 --micro-batch-size 1 --global-batch-size " +
                  std::string(sequences) + " " + words);
  };
  const std::string two = "--pipeline-model-parallel-size 2 ";
  for (const char* words :
       {"--num-layers-per-virtual-pipeline-stage 1", "--num-virtual-stages-per-pipeline-rank 4"}) {
    const ConfiguredCases planned = run(given(two + words), {{"ranks", "2"}});
    EXPECT_EQ(planned.resolved.config.pipeline.schedule, "interleaved_1f1b");
    EXPECT_EQ(planned.resolved.config.pipeline.virtual_stages, 4);
    EXPECT_EQ(axes(planned.cases.at(0)).at("schedule"), "interleaved_1f1b");
    EXPECT_EQ(axes(planned.cases.at(0)).at("num-virtual-stages-per-pipeline-rank"), "4");
  }
  const auto refused = [&](const std::string& words, harness::AxisFlags axes = {}) {
    axes["ranks"] = "2";
    return refusal(given(words), axes);
  };
  EXPECT_EQ(refused(two, {{"schedule", "zb_v"}}), "accepted");
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

}  // namespace
}  // namespace suite
