// Published ds_config.json files and arguments of Megatron-LM, and invalid ones.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/json/json.h"
#include "suite/configuration/resolve.h"
#include "suite/testing/file_case.h"

namespace suite::configuration {
namespace {

using suite::testing::expect_words;
using suite::testing::Folder;
using suite::testing::write_bytes;

std::string fixture(const std::string& name) { return SHARDMARK_FIXTURES "/" + name; }

// Returns the error message, which must be one line, or "accepted".
std::string refusal(const Sources& sources) {
  try {
    resolve(sources);
  } catch (const harness::UsageError& error) {
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    return error.what();
  }
  return "accepted";
}

class Configuration : public ::testing::Test {
 protected:
  // Sources with this text as ds_config.json, on this number of GPUs.
  Sources of(const std::string& json, std::int64_t gpus = 1) {
    const std::string path = folder_.path("ds_config.json");
    write_bytes(path, json);
    return {.deepspeed_file = path, .gpus = gpus};
  }
  // Sources with these keys and the batch size that every configuration requires.
  Sources with(const std::string& keys) { return of(R"({"train_batch_size": 1, )" + keys + "}"); }
  std::string folder(const std::string& name) const { return folder_.path(name); }

 private:
  Folder folder_;
};

const Entry& entry(const Resolved& resolved, const std::string& key) {
  for (const Entry& one : resolved.entries)
    if (one.key == key) return one;
  throw std::logic_error("no entry " + key);
}

TEST_F(Configuration, AcceptsT5WithZeroStage2Unchanged) {
  const Resolved run = resolve({.deepspeed_file = fixture("t5_zero2_offload.json"), .gpus = 8});
  const TrainingConfig& t = run.config;
  EXPECT_EQ(t.zero.stage, 2);
  EXPECT_EQ(t.zero.options.offload_optimizer.device, zero::OffloadDevice::cpu);
  EXPECT_EQ(t.zero.reduce_bucket_size, 200'000'000);
  EXPECT_EQ(t.zero.options.allgather_bucket_size, 200'000'000);
  EXPECT_TRUE(t.zero.overlaps());
  EXPECT_EQ(t.precision.dtype, machine::Dtype::float32);
  EXPECT_EQ(t.schedule.type, "WarmupLR");
  EXPECT_EQ(t.schedule.warmup_max_lr, 5e-5);
  EXPECT_EQ(t.schedule.warmup_num_steps, 0);
  EXPECT_EQ(t.optimizer.clipping, 1);
  EXPECT_EQ(t.batch.micro_batch_size, 8);
  EXPECT_EQ(t.batch.gradient_accumulation_steps, 1);
  EXPECT_EQ(t.batch.global_batch_size, 64);
  ASSERT_EQ(run.warnings.size(), 1U);
  expect_words(run.warnings[0],
               {"steps_per_print (20) has no effect here", "its own measurements"});
  // Given keys without effect.
  std::set<std::string> ignored;
  for (const Ignored& one : run.ignored) ignored.insert(one.key);
  EXPECT_EQ(ignored, (std::set<std::string>{"steps_per_print", "fp16.loss_scale",
                                            "fp16.initial_scale_power", "fp16.loss_scale_window",
                                            "fp16.hysteresis", "fp16.min_loss_scale"}));
  EXPECT_TRUE(t.zero.options.offload_optimizer.pin_memory);
  expect_words(entry(run, "scheduler.params.warmup_max_lr").origin, {"auto", "learning rate"});
}

TEST_F(Configuration, T5WithZeroStage3DerivesBucketsFromTheModel) {
  Sources sources{.deepspeed_file = fixture("t5_zero3_offload.json"), .gpus = 4};
  expect_words(refusal(sources),
               {"zero_optimization.reduce_bucket_size is 'auto'", "hidden²", "--hidden-size"});
  sources.words = {
      "--hidden-size",       "1024", "--bf16", "--lr", "3e-4", "--micro-batch-size", "2",
      "--global-batch-size", "64"};
  const TrainingConfig t = resolve(sources).config;
  EXPECT_EQ(t.zero.stage, 3);
  EXPECT_EQ(t.zero.reduce_bucket_size, 1024 * 1024);
  EXPECT_EQ(t.zero.options.stage3_prefetch_bucket_size, 943'718);  // 0.9 * 1024²
  EXPECT_EQ(t.zero.param_persistence_threshold, 10'240);
  EXPECT_EQ(t.precision.dtype, machine::Dtype::bfloat16);
  EXPECT_EQ(t.schedule.warmup_max_lr, 3e-4);
  EXPECT_EQ(t.batch.gradient_accumulation_steps, 8);
}

TEST_F(Configuration, PinMemoryIsHonoured) {
  const auto pins = [&](const std::string& value) {
    return resolve(
               with(R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu")" +
                    value + R"(}, "offload_param": {"device": "cpu")" + value + "}}"))
        .config.step_options();
  };
  for (const bool pinned : {true, false}) {
    const auto options = pins(pinned ? R"(, "pin_memory": true)" : R"(, "pin_memory": false)");
    EXPECT_EQ(options.offload_optimizer.pin_memory, pinned);
    EXPECT_EQ(options.offload_param.pin_memory, pinned);
  }
  EXPECT_TRUE(pins("").offload_optimizer.pin_memory);
}

TEST_F(Configuration, ANamedModelIsASource) {
  Sources sources{.model = "llama2_7b", .gpus = 2};
  const Resolved run = resolve(sources);
  EXPECT_EQ(run.config.model.sequence, 4096);
  EXPECT_EQ(run.config.model.tokens, 32000);
  expect_words(entry(run, "--swiglu").origin, {"--model llama2_7b"});
  expect_words(entry(run, "--seq-length").origin, {"--model llama2_7b"});
  sources.words = {"--seq-length", "512"};
  EXPECT_EQ(resolve(sources).config.model.sequence, 512);
  sources.words = {"--num-layers", "31"};
  expect_words(refusal(sources), {"--model llama2_7b is 32", "--num-layers is 31"});
  sources.words = {};
  sources.parameters = 7'000'000'000;
  expect_words(refusal(sources), {"--parameters 7000000000", "one of the two"});
  expect_words(refusal({.model = "llama2_7c"}), {"'llama2_7c'", "'llama2_7b'"});
}

TEST_F(Configuration, KeysThatDeepSpeedIgnoresAreReported) {
  const Sources megatron{.deepspeed_file = fixture("megatron_deepspeed.json"), .gpus = 32},
      tensor{.deepspeed_file = fixture("tensor_parallel_zero2.json"), .gpus = 8};
  const Resolved run = resolve(megatron);
  EXPECT_EQ(run.config.batch.micro_batch_size, 1);
  EXPECT_EQ(run.config.optimizer.type, "adamw");
  EXPECT_EQ(run.config.optimizer.betas, (std::array{0.9, 0.95}));
  EXPECT_EQ(run.config.zero.communication_data_type, "fp16");
  EXPECT_EQ(run.config.zero.options.offload_param.device, zero::OffloadDevice::cpu);
  std::string warnings;
  for (const std::string& warning : run.warnings) warnings += warning + "\n";
  expect_words(warnings, {"has no effect here", "activation_checkpointing.enable",
                          "activation_checkpointing.checkpoint_granularity", "'float16'"});
  expect_words(text(run), {"activation_checkpointing.enable"});
  EXPECT_EQ(harness::Json::parse(json(run)).at("warnings").size(), run.warnings.size());

  expect_words(fmt::format("{}", fmt::join(resolve(tensor).warnings, " ")),
               {"pipeline_parallel.enabled", "DeepSpeed has no such key", "pipeline.stages"});
  const TrainingConfig t = resolve(tensor).config;
  EXPECT_EQ(t.degrees.tp, 4);
  EXPECT_EQ(t.degrees.dp, 2);
  EXPECT_EQ(t.batch.micro_batch_size, 8);
}

// DeepSpeedEngine.get_data_types and communication_data_type; Megatron-LM's validate_args.
TEST_F(Configuration, DtypesOfGradientsAreThoseOfTheTool) {
  struct Row {
    const char *deepspeed, *megatron, *sums, *wire;
  };
  for (const Row& row : {
           Row{R"("bf16": {"enabled": true}, "zero_optimization": {"stage": 1})", "", "bf16",
               "bf16"},
           {R"("bf16": {"enabled": true})", "", "fp32", "bf16"},
           {R"("fp16": {"enabled": true})", "", "fp16", "fp16"},
           {R"("steps_per_print": 1)", "", "", ""},
           {R"("bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
               "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32")",
            "", "fp32", "fp32"},
           {"", "--bf16", "fp32", ""},
           {"", "--bf16 --grad-reduce-in-bf16", "bf16", ""},
           {"", "--fp16", "fp16", ""},
           {"", "--fp16 --accumulate-allreduce-grads-in-fp32", "fp32", ""},
       }) {
    const std::string deepspeed = row.deepspeed, megatron = row.megatron;
    const std::string path = folder("arguments.sh");
    write_bytes(path, megatron);
    const Sources sources =
        megatron.empty() ? with(deepspeed) : Sources{.megatron_file = path, .gpus = 1};
    const TrainingConfig config = resolve(sources).config;
    EXPECT_EQ(config.zero.grad_accum_dtype, row.sums) << deepspeed << megatron;
    EXPECT_EQ(config.zero.communication_data_type, row.wire) << deepspeed << megatron;
  }
}

TEST_F(Configuration, AcceptsMegatronArgumentsUnchanged) {
  const Resolved run = resolve({.megatron_file = fixture("megatron_arguments.txt"), .gpus = 1024});
  const TrainingConfig& t = run.config;
  EXPECT_EQ(t.model.layers, 120);
  EXPECT_EQ(t.model.hidden, 12288);
  EXPECT_EQ(t.model.tokens, 50257);
  EXPECT_EQ(t.degrees.dp, 32);
  EXPECT_EQ(t.shards(), 64);
  EXPECT_EQ(t.batch.gradient_accumulation_steps, 32);
  EXPECT_EQ(t.optimizer.learning_rate, 6e-5);
  EXPECT_EQ(t.optimizer.weight_decay, 0.01);
  EXPECT_EQ(t.schedule.lr_warmup_iters, 2000);
  EXPECT_EQ(t.activations.recompute_granularity, layers::RecomputeGranularity::selective);
  EXPECT_TRUE(t.activations.use_flash_attn);
  EXPECT_TRUE(t.activations.sequence_parallel);
  EXPECT_EQ(t.precision.dtype, machine::Dtype::float16);
}

TEST_F(Configuration, ReadsThePartsOfTpCommOverlap) {
  const std::string model =
      "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 --vocab-size 64 "
      "--micro-batch-size 1 --global-batch-size 4 --tensor-model-parallel-size 2 ";
  const auto parts = [&](const std::string& arguments) {
    const std::string path = folder("arguments.sh");
    write_bytes(path, model + arguments);
    return resolve({.megatron_file = path, .gpus = 2});
  };
  using layers::TpCommOverlap;
  EXPECT_EQ(parts("--sequence-parallel").config.activations.tp_comm, TpCommOverlap());
  EXPECT_EQ(parts("--sequence-parallel --tp-comm-overlap").config.activations.tp_comm,
            (TpCommOverlap{.enabled = true}));
  EXPECT_EQ(
      parts("--sequence-parallel --tp-comm-overlap --disable-tp-comm-bulk-dgrad "
            "--disable-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad")
          .config.activations.tp_comm,
      (TpCommOverlap{.enabled = true, .split_rs = false, .bulk_dgrad = false, .rs_dgrad = true}));
  // Without sequence parallelism only the all-reduce runs during a product.
  const std::vector<std::string> warnings =
      parts("--tp-comm-overlap --disable-tp-comm-bulk-dgrad").warnings;
  ASSERT_EQ(warnings.size(), 1u);
  expect_words(warnings[0], {"--tp-comm-bulk-dgrad", "--sequence-parallel"});

  Sources sources = of(R"({"train_batch_size": 4,
      "tensor_parallel": {"autotp_size": 2, "tp_overlap_comm": true}})",
                       2);
  sources.words = words_of("model",
                           "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 "
                           "--vocab-size 64");
  EXPECT_EQ(resolve(sources).config.activations.tp_comm, (TpCommOverlap{.enabled = true}));
}

// FPDT has striped positions.
TEST_F(Configuration, SequenceParallelSizeIsUlyssesOverContiguousPositions) {
  const std::string model =
      "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 --vocab-size 64";
  Sources sources = of(R"({"train_batch_size": 8, "sequence_parallel_size": 2})", 4);
  sources.words = words_of("model", model);
  const TrainingConfig t = resolve(sources).config;
  EXPECT_EQ(t.degrees.cp, 2);
  EXPECT_EQ(t.degrees.dp, 2);
  EXPECT_EQ(t.shards(), 4);
  EXPECT_EQ(t.context.comm_type, layers::CpCommType::a2a);
  EXPECT_EQ(t.context.order, layers::SequenceOrder::contiguous);
  sources.words = words_of("model", model + " --context-parallel-size 4");
  expect_words(refusal(sources), {"sequence_parallel_size", "--context-parallel-size"});
  for (const char* degree : {" --context-parallel-size 2", " --ds-sequence-parallel-size 2"}) {
    sources = of(R"({"train_batch_size": 8})", 4);
    sources.words =
        words_of("model", model + degree + " --use-flash-attn --ds-sequence-parallel-fpdt");
    const layers::ContextOptions fpdt = resolve(sources).config.context;
    EXPECT_EQ(fpdt.comm_type, layers::CpCommType::a2a) << degree;
    EXPECT_EQ(fpdt.order, layers::SequenceOrder::striped) << degree;
  }
}

// The published pair of files. Its batch size is inconsistent on 32 GPUs, but valid on 1024.
TEST_F(Configuration, CombinesBothFiles) {
  Sources both{.deepspeed_file = fixture("megatron_deepspeed.json"),
               .megatron_file = fixture("megatron_arguments.txt"),
               .gpus = 32,
               .ignore_unknown = true};
  expect_words(refusal(both), {"train_batch_size 1024", "train_micro_batch_size_per_gpu 1",
                               "--micro-batch-size", "gradient_accumulation_steps 32",
                               "data-parallel size 1", "32 GPUs / tp 8 / pp 2 / cp 2"});
  both.gpus = 1024;
  EXPECT_EQ(refusal(both), "accepted");
  both.words = {"--lr", "1e-4"};
  expect_words(refusal(both), {"optimizer.params.lr is 6e-05", "--lr is 0.0001"});
  both.words = {"--clip-grad", "0.5"};
  expect_words(refusal(both), {"gradient_clipping is 1", "command line: --clip-grad is 0.5"});
}

TEST_F(Configuration, TwoBatchKeysDetermineTheThird) {
  const auto batch = [&](const std::string& keys, std::int64_t gpus = 4) {
    const TrainingConfig::Batch b = resolve(of("{" + keys + "}", gpus)).config.batch;
    EXPECT_EQ(b.global_batch_size, b.micro_batch_size * b.gradient_accumulation_steps * gpus);
    return std::array{b.global_batch_size, b.micro_batch_size, b.gradient_accumulation_steps};
  };
  const std::string all = R"("train_batch_size": 48)",
                    micro = R"("train_micro_batch_size_per_gpu": 2)",
                    steps = R"("gradient_accumulation_steps": 6)";
  const std::array<int, 3> expected{48, 2, 6};
  EXPECT_EQ(batch(all + "," + micro), expected);
  EXPECT_EQ(batch(all + "," + steps), expected);
  EXPECT_EQ(batch(micro + "," + steps), expected);
  EXPECT_EQ(batch(all + "," + micro + "," + steps), expected);
  EXPECT_EQ(batch(all), (std::array<int, 3>{48, 12, 1}));
  EXPECT_EQ(batch(micro), (std::array<int, 3>{8, 2, 1}));
  expect_words(refusal(of("{" + all + "," + micro + "," + steps + "}", 2)),
               {"train_batch_size 48", "train_micro_batch_size_per_gpu 2",
                "gradient_accumulation_steps 6", "data-parallel size 2"});
  expect_words(refusal(of(R"({"train_batch_size": 50, "gradient_accumulation_steps": 6})", 4)),
               {"train_batch_size 50", "derived", "data-parallel size 4"});
  expect_words(refusal(of("{" + steps + "}")), {"neither train_batch_size nor"});
  expect_words(refusal(of("{" + all + "}", 0)), {"0 GPUs"});
  Sources cut = of("{" + all + "}", 6);
  cut.words = {"--tp", "4"};
  expect_words(refusal(cut), {"6 GPUs", "tensor-model-parallel-size 4", "next multiple is 8"});
}

TEST_F(Configuration, UnknownKeysSuggestTheNearest) {
  expect_words(refusal(with(R"("zero_optimization": {"stge": 1})")),
               {"ds_config.json: unknown key 'zero_optimization.stge'",
                "did you mean 'zero_optimization.stage'?", "--ignore-unknown-keys"});
  expect_words(refusal(with(R"("gradient_cliping": 1)")), {"'gradient_clipping'"});
  expect_words(refusal(with(R"("zero_optimisation": {"stage": 1})")), {"'zero_optimization'"});
  expect_words(refusal(with(R"("overlap_comm": true)")), {"'zero_optimization.overlap_comm'"});
  expect_words(refusal(with(R"("zero_optimization": {"gradient_clipping": 1})")),
               {"did you mean 'gradient_clipping'?"});
  expect_words(refusal(with(R"("qwertyuiop": {"deep": {"er": 1}})")),
               {"unknown key 'qwertyuiop'", "this program does not use it"});
  // Known but unsupported keys are accepted if their value requests nothing.
  EXPECT_EQ(refusal(with(R"("sparse_gradients": false, "amp": {"enabled": false, "x": 1},
                            "zero_optimization": {"zero_hpz_partition_size": 1}, "elasticity": {"enabled": false})")),
            "accepted");
  expect_words(
      refusal(with(R"("zero_optimization": {"zero_quantized_nontrainable_weights": true})")),
      {"zero_quantized_nontrainable_weights (true) is not honoured", "frozen"});
  expect_words(refusal(with(R"("zero_optimization": {"zeropp_loco_param": {"err_beta": 0.8}})")),
               {"zeropp_loco_param (an object) is not honoured", "LoCo"});
  expect_words(refusal(with(R"("autotuning": {"enabled": true})")),
               {"autotuning", "shardmark run"});
  expect_words(refusal(with(R"("optimizer": {"type": "Shampoo"})")), {"'Shampoo'", "adamw"});
  expect_words(refusal(with(R"("optimizer": {"type": "ZeroOneAdam"})")),
               {"ZeroOneAdam", "not supported", "one_bit_adam"});
  expect_words(refusal(with(R"("optimizer": {"params": {"max_grad_norm": 1.0}})")),
               {"gradient_clipping"});
}

TEST_F(Configuration, LambHasItsLimits) {
  const auto lamb = [this](const char* type, const char* more) {
    return with(fmt::format(
        R"("optimizer": {{"type": "{}", "params": {{"max_coeff": 0.5, "min_coeff": 0.05, "eps": 1e-6{}}}}})",
        type, more));
  };
  for (const char* type : {"Lamb", "FusedLamb"}) {
    const zero::Rule rule = resolve(lamb(type, "")).config.optimizer.rule();
    const auto* const got = std::get_if<zero::Lamb>(&rule);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->max_coeff, 0.5);
    EXPECT_EQ(got->min_coeff, 0.05);
    EXPECT_EQ(got->epsilon, 1e-6);
  }
  expect_words(refusal(lamb("Lamb", R"(, "eps_inside_sqrt": true)")), {"eps_inside_sqrt"});
  std::string warnings;
  for (const std::string& warning : resolve(lamb("AdamW", "")).warnings) warnings += warning + "\n";
  expect_words(warnings, {"optimizer.params.max_coeff", "optimizer.type Lamb"});
}

TEST_F(Configuration, AdafactorHasAGivenRate) {
  const auto adafactor = [this](const char* params) {
    return with(fmt::format(R"("optimizer": {{"type": "Adafactor", "params": {{{}}}}})", params));
  };
  const zero::Rule rule =
      resolve(adafactor(R"("lr": 0.02, "clip_threshold": 2, "relative_step": false)"))
          .config.optimizer.rule();
  const auto* const got = std::get_if<zero::Adafactor>(&rule);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->learning_rate, 0.02);
  EXPECT_EQ(got->decay_rate, 0.8);
  EXPECT_EQ(got->clip_threshold, 2);
  expect_words(refusal(adafactor(R"("relative_step": true)")),
               {"relative_step", "optimizer.params.lr"});
}

TEST_F(Configuration, OlderNamesAreMapped) {
  const Resolved run = resolve(with(R"("bfloat16": {"enabled": true}, "aio": {"thread_count": 4},
      "zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_params": true,
                            "stage3_gather_fp16_weights_on_model_save": true})"));
  const TrainingConfig& t = run.config;
  EXPECT_EQ(t.precision.dtype, machine::Dtype::bfloat16);
  EXPECT_EQ(t.zero.options.offload_optimizer.device, zero::OffloadDevice::cpu);
  EXPECT_EQ(t.zero.options.offload_param.device, zero::OffloadDevice::cpu);
  EXPECT_EQ(run.warnings.size(), 7U);
  expect_words(refusal(with(R"("zero_optimization": {"stage": 2, "cpu_offload": true,
                                "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}})")),
               {"cpu_offload is cpu", "offload_optimizer.device is nvme"});
}

TEST_F(Configuration, CurrentAndFormerDefaultsOfDeepSpeed) {
  const Resolved run = resolve(
      with(R"("steps_per_print": null, "zero_optimization": {"stage": 3, "overlap_comm": null,
              "offload_optimizer": {"device": "nvme", "nvme_path": "/n"},
              "offload_param": {"device": "nvme", "nvme_path": "/n"}}, "fp16": {"enabled": true})"));
  const auto value = [&](const std::string& key) { return entry(run, key).value; };
  EXPECT_EQ(value("gradient_clipping"), "1");
  expect_words(entry(run, "gradient_clipping").since, {"2026-06-23", "8068", "0, which is off"});
  EXPECT_EQ(value("zero_optimization.reduce_bucket_size"), "500000000");
  EXPECT_EQ(value("zero_optimization.sub_group_size"), "1000000000");
  EXPECT_EQ(value("zero_optimization.stage3_prefetch_bucket_size"), "50000000");
  EXPECT_EQ(value("zero_optimization.stage3_param_persistence_threshold"), "100000");
  EXPECT_EQ(value("zero_optimization.offload_param.buffer_size"), "100000000");
  EXPECT_EQ(value("zero_optimization.overlap_comm"), "none");
  EXPECT_EQ(value("aio.block_size"), "1048576");
  EXPECT_EQ(value("fp16.initial_scale_power"), "16");
  EXPECT_TRUE(run.config.zero.overlaps());
  expect_words(text(run), {"gradient_clipping", "by DeepSpeed's version", "ds_config.json"});
  const auto parsed = harness::Json::parse(json(run));
  EXPECT_EQ(parsed.at("keys").at("gradient_clipping").at("value"), 1);
  EXPECT_EQ(parsed.at("keys").at("optimizer.type").at("value"), "adamw");
  EXPECT_TRUE(parsed.at("keys").at("zero_optimization.overlap_comm").at("value").is_null());
  EXPECT_FALSE(parsed.at("keys").contains("steps_per_print"));
  // If a key is given, its value does not depend on DeepSpeed's version.
  const Resolved said = resolve(with(R"("gradient_clipping": 0)"));
  EXPECT_EQ(entry(said, "gradient_clipping").since, "");
  expect_words(entry(said, "gradient_clipping").origin, {"ds_config.json"});
}

TEST_F(Configuration, RejectsValuesOfAnotherTypeOrSize) {
  for (const auto& [keys, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {R"("zero_optimization": {"stage": 4})", {"zero_optimization.stage is 4", "0 to 3"}},
           {R"("zero_optimization": {"stage": "2"})", {"is '2'", "whole number"}},
           {R"("zero_optimization": {"stage": 1.5})", {"is 1.5", "whole number"}},
           {R"("zero_optimization": {"stage": {"a": 1}})", {"an object", "whole number"}},
           {R"("zero_optimization": true)", {"zero_optimization is true", "object"}},
           {R"("zero_optimization": {"reduce_bucket_size": -1})", {"is -1", "from 1"}},
           {R"("zero_optimization": {"reduce_bucket_size": 1e300})", {"1e+300"}},
           {R"("zero_optimization": {"overlap_comm": 1})", {"is 1", "true or false"}},
           {R"("zero_optimization": {"overlap_comm": "auto"})", {"'auto'", "no rule"}},
           {R"("fp16": {"loss_scale": true})", {"fp16.loss_scale is true", "a number"}},
           {R"("fp16": {"enabled": true}, "bf16": {"enabled": true})", {"fp16", "bf16"}},
           {R"("optimizer": {"params": {"betas": [0.9]}})", {"betas", "two numbers"}},
           {R"("optimizer": {"params": {"betas": [0.9, 1.0]}})", {"betas is 1"}},
           {R"("optimizer": {"params": {"betas": [0.9, "x"]}})", {"a list", "two numbers"}},
           {R"("optimizer": {"params": {"betas": [[0.9], 0.9]}})", {"a list"}},
           {R"("optimizer": {"params": {"betas": [{"a": 1}, 0.9]}})", {"a list"}},
           {R"("communication_data_type": "fp61")", {"'fp61'", "'fp16'"}},
           {R"("zero_optimization": {"offload_param": {"device": "cpu"}})", {"stage is 0"}},
           {R"("zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}})",
            {"nvme_path"}},
           {R"("zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum")", {"stage 3"}},
           {R"("activation_checkpointing": {"synchronize_checkpoint_boundary": true})",
            {"not honoured"}}}) {
    const std::string said = refusal(with(keys));
    for (const std::string& word : words) expect_words(said, {word});
    EXPECT_NE(said, "accepted") << keys;
  }
}

TEST_F(Configuration, RejectsInvalidFiles) {
  expect_words(refusal(of(R"({"train_batch_size": 8, "train_batch_size": 16})")),
               {"ds_config.json", "train_batch_size is given twice"});
  expect_words(refusal(with(R"("fp16": {"enabled": true, "hysteresis": 2, "enabled": false})")),
               {"fp16.enabled is given twice"});
  expect_words(refusal(of("{\n\"fp16\": {\"loss_scale\": NaN}}")),
               {"line 2, column", "fp16.loss_scale", "not valid JSON"});
  expect_words(refusal(of(R"({"fp16": {"loss_scale": 1e999}})")),
               {"fp16.loss_scale", "1e999", "out of range"});
  expect_words(refusal(of(R"({"fp16": {"loss_scale":)")), {"fp16.loss_scale", "not valid JSON"});
  expect_words(refusal(of("[1]")), {"is a list", "object"});
  expect_words(refusal(of("3")), {"is a number", "object"});
  expect_words(refusal(of(" ")), {"not valid JSON"});
  expect_words(refusal(of("")), {"is empty"});
  std::string deep = R"({"a": )";
  for (int i = 0; i < 100'000; ++i) deep += i % 2 ? R"({"a": )" : "[";
  expect_words(refusal(of(deep)), {"levels deep"});
  std::string objects = "{";
  for (int i = 0; i < 40; ++i) objects += R"("a": {)";
  expect_words(refusal(of(objects)), {"levels deep", "a.a.a"});
  expect_words(refusal({.deepspeed_file = folder("ds_confg.json")}), {"ds_confg.json"});
  EXPECT_EQ(refusal(of("{ // a comment\n \"train_batch_size\": 8 /* and one */ }")), "accepted");
  expect_words(refusal(of("{\"a\nb\x01" + std::string(500, 'c') + "\": 1}")), {"not valid JSON"});
}

TEST_F(Configuration, ParsesMegatronArguments) {
  const auto words = [&](const std::string& text) {
    return refusal({.words = words_of("words", text), .gpus = 8});
  };
  EXPECT_EQ(words("--hidden-size=64 '--lr' \"1e-3\" # --nonsense\n--tp \\\n 2"), "accepted");
  expect_words(words("--hiden-size 64"), {"unknown argument '--hiden-size'", "'--hidden-size'"});
  expect_words(words("--hidden-size"), {"--hidden-size has no value", "whole number"});
  expect_words(words("--hidden-size --fp16"), {"--hidden-size has no value"});
  expect_words(words("--hidden-size 64 --hidden-size 32"), {"is 64", "is 32"});
  expect_words(words("--hidden-size sixty"), {"'sixty'", "whole number"});
  expect_words(words("--hidden-size 1e9"), {"from 1 to"});
  expect_words(words("--fp16 yes"), {"--fp16 is a switch", "'yes'"});
  expect_words(words("fp16"), {"'fp16' is not an argument"});
  expect_words(words("--recompute-granularity selectve"), {"'selectve'", "'selective'"});
  EXPECT_EQ(words("--num-experts 8 --moe-router-topk 1"), "accepted");
  EXPECT_EQ(words("--num-experts 8 --tp 2 --expert-tensor-parallel-size 1"), "accepted");
  expect_words(words("--num-experts 8 --moe-token-drop-policy prob"), {"'prob'", "'probs'"});
  expect_words(words("--hidden-dropout 1"), {"--hidden-dropout", "from 0 to"});
  EXPECT_EQ(words("--hidden-dropout 0.1 --attention-dropout 0.0"), "accepted");
  EXPECT_EQ(
      resolve({.words = {"--data-parallel-sharding-strategy", "optim_grads"}}).config.zero.stage,
      2);
  EXPECT_EQ(resolve({.words = {"--use-distributed-optimizer"}}).config.zero.stage, 1);
  Sources ignored{.words = {"--hiden-size", "64", "--num-layers", "2"}, .ignore_unknown = true};
  EXPECT_EQ(resolve(ignored).warnings.size(), 1U);
  EXPECT_EQ(resolve(ignored).config.model.layers, 2);
  EXPECT_THROW(words_of("words", "--lr '1"), FileError);
}

}  // namespace
}  // namespace suite::configuration
