// Compares the planner's bytes with the papers' numbers and with the formulas of Megatron-LM and
// DeepSpeed. If this program can hold a training, also compares them with a trainer.

#include "suite/plan/memory_plan.h"
#include "harness/json/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "layers/models/gpt_cost.h"
#include "suite/configuration/models.h"
#include "suite/configuration/resolve.h"
#include "suite/plan/model_shape.h"
#include "suite/plan/plan_report.h"
#include "suite/testing/file_case.h"
#include "suite/trainer/expectations.h"
#include "zero/offload/io_ring.h"
#include "zero/stages/step.h"

namespace suite::configuration {
namespace {

using suite::testing::expect_words;
using enum Counting;

constexpr double GB = 1e9;

TrainingConfig of_count(double parameters, int ranks) {
  TrainingConfig t;
  t.model.parameters = static_cast<std::int64_t>(parameters);
  t.degrees.dp = ranks;
  t.batch = {1, ranks, 1};
  t.precision.dtype = machine::Dtype::bfloat16;
  return t;
}

double states(const TrainingConfig& training, const Holding& holding) {
  const Bytes gpu = held(training, holding, {}).gpu;
  return gpu.parameters + gpu.gradients + gpu.optimizer;
}

// Rajbhandari et al. 2020, figure 1: 7.5B parameters on 64 GPUs.
TEST(MemoryPlan, StagesMatchThePaper) {
  const TrainingConfig t = of_count(7.5e9, 64);
  EXPECT_DOUBLE_EQ(states(t, {paper, 0}), 120 * GB);
  EXPECT_DOUBLE_EQ(states(t, {paper, 1}), 31.40625 * GB);
  EXPECT_DOUBLE_EQ(states(t, {paper, 2}), 16.640625 * GB);
  EXPECT_DOUBLE_EQ(states(t, {paper, 3}), 1.875 * GB);
  expect_words(held(t, {paper, 2}, {}).assumption, {"2Ψ + 2Ψ/d + 12Ψ/d"});
}

TEST(MemoryPlan, StagesMatchMegatron) {
  TrainingConfig t = of_count(1e9, 8);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 0}), 18 * GB);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 1}), 7.5 * GB);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 2}), 4 * GB);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 3}), 2.25 * GB);
  t.precision.dtype = machine::Dtype::float32;
  EXPECT_DOUBLE_EQ(states(t, {megatron, 0}), 16 * GB);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 1}), 9 * GB);
  t.precision.dtype = machine::Dtype::float16;
  EXPECT_DOUBLE_EQ(states(t, {megatron, 0}), 20 * GB);
  EXPECT_DOUBLE_EQ(states(t, {megatron, 1}), 6 * GB);
}

TEST(MemoryPlan, StagesMatchDeepSpeedsEstimator) {
  const Machine nodes_of_8{.gpus_per_node = 8};
  TrainingConfig t = of_count(1e9, 16);
  const auto of = [&](int stage, const char* optimizer, const char* parameters) {
    return held(t, {deepspeed, stage, optimizer, parameters}, nodes_of_8);
  };
  EXPECT_DOUBLE_EQ(of(2, "none", "none").gpu.total(), 2 * GB + 18 * GB / 16);
  EXPECT_DOUBLE_EQ(of(2, "cpu", "none").gpu.total(), 2 * GB);
  EXPECT_DOUBLE_EQ(8 * of(2, "cpu", "none").cpu.total(), 64 * 1.5 * GB);  // per node
  EXPECT_DOUBLE_EQ(of(3, "none", "none").gpu.total(), 18 * GB / 16);
  EXPECT_DOUBLE_EQ(of(3, "cpu", "none").gpu.total(), 2 * GB / 16);
  EXPECT_DOUBLE_EQ(8 * of(3, "cpu", "none").cpu.total(), 16 * 1.5 / 2 * GB);
  EXPECT_DOUBLE_EQ(8 * of(3, "cpu", "cpu").cpu.total(), 18 * 1.5 / 2 * GB);
  t.model = named_model("gpt2_1558m");
  EXPECT_DOUBLE_EQ(of(3, "cpu", "cpu").gpu.total(), 4.0 * 50257 * 1600) << "the largest layer";
}

// The errors of workers and server are 4 bytes an element and 4/d.
TEST(MemoryPlan, OneBitOptimizersKeepErrors) {
  TrainingConfig t = of_count(1e9, 16);
  const Held adamw = held(t, {paper, 0}, {});
  t.optimizer.type = "one_bit_adam";
  const Held adam = held(t, {paper, 0}, {});
  EXPECT_DOUBLE_EQ(adam.gpu.optimizer, adamw.gpu.optimizer);
  EXPECT_DOUBLE_EQ(adam.gpu.buffers, adamw.gpu.buffers + 4.25 * GB);
  t.optimizer.type = "one_bit_lamb";
  EXPECT_DOUBLE_EQ(held(t, {paper, 0}, {}).gpu.optimizer, adamw.gpu.optimizer + 4 * GB);
}

// Two codes and, for each block of 256, two scales of float.
TEST(MemoryPlan, EightBitMomentsHaveTwoBytes) {
  TrainingConfig t = of_count(1e9, 16);
  const Held adamw = held(t, {paper, 0}, {});
  t.optimizer.type = "adamw_8bit";
  EXPECT_DOUBLE_EQ(held(t, {paper, 0}, {}).gpu.optimizer,
                   adamw.gpu.optimizer - 8 * GB + 2.03125 * GB);
}

TEST(MemoryPlan, OffloadMovesTheOptimizersShare) {
  TrainingConfig t = of_count(16e9, 4);
  t.zero.reduce_bucket_size = t.zero.options.allgather_bucket_size = 100'000'000;
  const Held cpu = held(t, {paper, 2, "cpu"}, {});
  EXPECT_DOUBLE_EQ(cpu.gpu.parameters, 32 * GB);
  EXPECT_EQ(cpu.gpu.gradients + cpu.gpu.optimizer, 0);
  EXPECT_DOUBLE_EQ(cpu.cpu.total(), 14 * 4 * GB);
  EXPECT_DOUBLE_EQ(cpu.gpu.buffers, 0.4 * GB);
  t.zero.overlap_comm = true;
  EXPECT_DOUBLE_EQ(held(t, {paper, 2, "cpu"}, {}).gpu.buffers, 0.6 * GB);
  t.zero.communication_data_type = "fp32";
  EXPECT_DOUBLE_EQ(held(t, {paper, 2, "cpu"}, {}).gpu.buffers, 1.0 * GB);
  const Held nvme = held(t, {paper, 3, "nvme", "nvme"}, {});
  EXPECT_DOUBLE_EQ(nvme.nvme.total(), 14 * 4 * GB);
  EXPECT_DOUBLE_EQ(nvme.cpu.gradients, 2 * 4 * GB);
  EXPECT_DOUBLE_EQ(nvme.cpu.parameters, 2 * GB) << "max_in_cpu";
  EXPECT_DOUBLE_EQ(nvme.cpu.buffers, 4 * 1e9 * 4 + 5 * 1e8 * 2);
  EXPECT_EQ(nvme.gpu.parameters + nvme.gpu.gradients + nvme.gpu.optimizer, 0);
  t.zero.options.offload_optimizer.cpu.ratio = 0.75;
  EXPECT_DOUBLE_EQ(held(t, {paper, 3, "cpu"}, {}).gpu.optimizer, 3 * 4 * GB);
  EXPECT_DOUBLE_EQ(held(t, {paper, 3, "cpu"}, {}).cpu.optimizer, 9 * 4 * GB);
  // Offload does not change the sum over all devices.
  for (const int stage : {2, 3}) {
    const Held whole = held(t, {paper, stage}, {});
    for (const char* device : {"cpu", "nvme"}) {
      const Held away = held(t, {paper, stage, device}, {});
      const auto all = [](const Held& h) {
        return h.gpu.optimizer + h.cpu.optimizer + h.nvme.optimizer + h.gpu.gradients +
               h.cpu.gradients;
      };
      EXPECT_DOUBLE_EQ(all(away), all(whole)) << stage << device;
    }
  }
}

TEST(ModelShape, CountsParametersExactly) {
  EXPECT_EQ(parameters_of(named_model("gpt2_124m")), 124'439'808);
  EXPECT_EQ(parameters_of(named_model("gpt2_1558m")), 1'557'611'200);
  EXPECT_EQ(parameters_of(named_model("llama2_7b")), 6'738'415'616);
  EXPECT_EQ(parameters_of(named_model("llama2_13b")), 13'015'864'320);
  EXPECT_EQ(parameters_of(named_model("llama2_70b")), 68'976'648'192);
  EXPECT_NEAR(parameters_of(named_model("gpt3_175b")), 175e9, 0.5e9);
  for (const std::string& name : model_names())
    EXPECT_EQ(parameters_of(named_model(name)), layers::parameters_count(named_model(name)))
        << name;
  Model grouped = named_model("llama2_7b");
  grouped.num_query_groups = 8;
  EXPECT_EQ(parameters_of(named_model("llama2_7b")) - parameters_of(grouped),
            32.0 * 2 * 4096 * (4096 - 1024));
  // The parameters of one rank of a stage equal those that the layers count.
  const Model model = named_model("gpt2_1558m");
  for (const int pp : {1, 2, 4}) {
    const layers::GptConfig gpt{48, 1600, 25, padded_vocabulary(model, 1), 1024};
    EXPECT_EQ(parameters_of_rank(model, {.pp = pp}),
              layers::stage_parameters_count(gpt, {1, {0, pp}}));
  }
  EXPECT_THROW(named_model("gpt2_124n"), std::invalid_argument);
}

// Korthikanti et al. 2022, table 2, for GPT-3's layers.
TEST(MemoryPlan, ActivationsMatchThePaper) {
  TrainingConfig t;
  t.model = layers::GptConfig{
      .layers = 4, .hidden = 12288, .heads = 96, .vocabulary = 51200, .sequence = 2048};
  t.model.tokens = 51200;
  t.precision.dtype = machine::Dtype::float16;
  t.degrees = {.tp = 8, .pp = 4};
  t.batch = {1, 64, 64};
  const double sbh = 2048.0 * 12288, tokens = 8 * 2048.0;
  // One layer per stage. The first stage has four micro-batches in flight.
  EXPECT_DOUBLE_EQ(activation_bytes(t), 4 * (sbh * (10 + 24 / 8.0 + 80 / 8.0) + tokens + sbh));
  // The diagonal of 16 x 16 blocks of scores, and the block before each of the diagonal.
  TrainingConfig sparse = t;
  sparse.model.sparse = {{.mode = layers::SparseMode::local_sliding_window}, 128};
  EXPECT_DOUBLE_EQ(activation_bytes(sparse),
                   4 * (sbh * (10 + 24 / 8.0 + 80 / 8.0 * 31 / 256) + tokens + sbh));
  EXPECT_NE(activation_formula(sparse).find("0.121 of present blocks"), std::string::npos);
  t.activations.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(activation_bytes(t), 4 * (sbh * 114 / 8 + tokens + sbh / 8));
  t.activations.recompute_granularity = layers::RecomputeGranularity::selective;
  EXPECT_DOUBLE_EQ(activation_bytes(t), 4 * (sbh * 34 / 8 + tokens + sbh / 8));
  t.batch.gradient_accumulation_steps = 2;
  EXPECT_DOUBLE_EQ(activation_bytes(t), 2 * (sbh * 34 / 8 + tokens + sbh / 8));
  t.activations.recompute_granularity = layers::RecomputeGranularity::full;
  t.activations.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(activation_bytes(t), 2 * (sbh * 2 + tokens + sbh));
  t.activations.cpu_checkpointing = true;
  EXPECT_EQ(held(t, {paper, 1}, {}).gpu.activations, 0);
  EXPECT_DOUBLE_EQ(held(t, {paper, 1}, {}).cpu.activations, activation_bytes(t));
}

TEST(MemoryPlan, TheLargestModelFitsAndTheNextDoesNot) {
  TrainingConfig t = of_count(1e9, 8);
  t.model = named_model("gpt2_1558m");
  t.degrees = {.dp = 8, .pp = 2};
  for (const Holding& holding : holdings()) {
    if (!held(t, holding, {}).not_held.empty()) continue;
    const Machine machine{.gpu_memory = 20e9};
    const Largest found = largest(t, holding, machine);
    SCOPED_TRACE(std::string(name(holding.counting)) + " " + text(holding));
    if (found.beyond) continue;
    TrainingConfig grown = t;
    grown.model.layers = found.layers;
    EXPECT_GT(found.layers, 0);
    EXPECT_TRUE(fits(held(grown, holding, machine), machine));
    EXPECT_EQ(found.parameters, parameters_of(grown.model));
    grown.model.layers += 2;
    EXPECT_FALSE(fits(held(grown, holding, machine), machine));
  }
  const TrainingConfig counted = of_count(1e9, 1);
  Machine machine{.gpu_memory = 80e9};
  TrainingConfig no_buckets = counted;
  no_buckets.zero.reduce_bucket_size = 1;
  EXPECT_EQ(largest(no_buckets, {paper, 0}, machine).parameters, 4.999e9);
  EXPECT_TRUE(largest(no_buckets, {paper, 3, "cpu", "cpu"}, machine).beyond);
  machine.cpu_memory = 160e9;
  EXPECT_EQ(largest(no_buckets, {paper, 3, "cpu", "cpu"}, machine).parameters, 10e9);
}

// `ours` predicts the bytes that the memory oracle expects in a run. It omits the staging buffers
// of collectives, which do not exist with one rank.
TEST(Ours, MatchesTheExpectationsOfATrainer) {
  struct Case {
    machine::Degrees degrees;
    bool sequence_parallel = false;
    const char* granularity = "none";
    const char* model = "tiny";
    bool cpu_checkpointing = false;
    int virtual_stages = 1;
    std::optional<int> etp = {};
    bool fpdt = false;
  };
  for (const Case& one :
       {Case{}, Case{{.dp = 2}}, Case{{.tp = 2, .dp = 2}, true, "selective"},
        Case{{.dp = 2, .pp = 2}, false, "full"},
        Case{{.tp = 2, .dp = 2}, true, "none", "llama_tiny"}, Case{{}, false, "full", "tiny", true},
        Case{{.pp = 2}, false, "none", "tiny", false, 2}, Case{{.cp = 2}},
        Case{{.pp = 2}, false, "full", "moe_tiny"}, Case{{}, false, "none", "moe_tiny"},
        Case{{.tp = 2, .cp = 2}, true, "none", "moe_tiny"},
        Case{{.tp = 2, .dp = 2}, true, "none", "moe_tiny", false, 1, 1},
        Case{{.dp = 2}, false, "none", "moe_tiny", false, 1, 2},
        Case{{.tp = 2, .cp = 2, .dp = 2}, true, "full"},
        Case{{.cp = 2}, false, "none", "tiny", false, 1, {}, true},
        Case{{.cp = 2}, false, "full", "tiny", true, 1, {}, true}}) {
    TrainingConfig t;
    t.activations.use_flash_attn = one.degrees.cp > 1;
    t.model = named_model(one.model);
    t.model.layers *= one.virtual_stages;
    t.precision.dtype = machine::Dtype::bfloat16;
    t.degrees = one.degrees;
    t.expert_tensor_parallel = one.etp;
    if (one.etp) t.zero.overlap_comm = false;
    t.pipeline.virtual_stages = one.virtual_stages;
    if (one.virtual_stages > 1) t.pipeline.schedule = "interleaved_1f1b";
    t.batch = {2, 16, 8 / one.degrees.dp};
    t.activations.sequence_parallel = one.sequence_parallel;
    t.activations.recompute_granularity = layers::recompute_granularity(one.granularity);
    t.activations.cpu_checkpointing = one.cpu_checkpointing;
    if (one.fpdt)
      t.context = {.comm_type = layers::CpCommType::a2a,
                   .order = layers::SequenceOrder::striped,
                   .fpdt = true,
                   .fpdt_chunk_size = 8,
                   .fpdt_offloading = true};
    t.zero.param_persistence_threshold = 100;
    t.zero.options.stage3_prefetch_bucket_size = 20'000;
    for (int stage = 0; stage < zero::num_stages; ++stage) {
      const Held planned = held(t, {ours, stage}, {});
      ASSERT_EQ(planned.not_held, "");
      machine::run_ranks(one.degrees.ranks(), [&](machine::World& world) {
        TrainingConfig config = t;
        config.zero.stage = stage;
        config.model.vocabulary = padded_vocabulary(config.model, config.degrees.tp);
        const Corpus corpus = Corpus::generated(1);
        const Trainer trainer(world, world.group(), world.device(), config, corpus);
        if (world.rank() != 0) return;
        auto peaks = expected_peaks(trainer);
        using machine::Category;
        EXPECT_EQ(planned.gpu.parameters, peaks[Category::parameters]);
        EXPECT_EQ(planned.gpu.gradients, peaks[Category::gradients]);
        EXPECT_EQ(planned.gpu.optimizer, peaks[Category::optimizer]);
        EXPECT_EQ(planned.gpu.activations, peaks[Category::activations]);
        EXPECT_EQ(planned.cpu.activations, passage_peaks(trainer).host.activations);
        EXPECT_EQ(planned.cpu.activations > 0, one.cpu_checkpointing || one.fpdt);
        EXPECT_EQ(planned.cpu.buffers > 0, one.fpdt);
        EXPECT_LE(planned.gpu.buffers, peaks[Category::buffers]);
        if (one.degrees.ranks() == 1) {
          EXPECT_EQ(planned.gpu.buffers, peaks[Category::buffers]);
        }
      });
    }
  }
}

// `ours` predicts the bytes that a run of the same configuration holds on the device, on the host
// and in files.
TEST(Ours, MatchesTheMemoryOfARun) {
  using machine::Category;
  struct Away {
    int stage;
    const char *states, *values;
    std::int64_t max_in_cpu = 0;
  };
  const bool files = zero::IoRing::why_not().empty();
  for (const Away& away : {Away{0, "none", "none"},
                           {2, "cpu", "none"},
                           {3, "none", "none"},
                           {3, "cpu", "none"},
                           {3, "nvme", "none"},
                           {3, "none", "cpu"},
                           {3, "cpu", "cpu"},
                           {3, "cpu", "nvme"},
                           {3, "nvme", "nvme", 15'000}}) {
    if (!files && (away.states + std::string(away.values)).find("nvme") != std::string::npos)
      continue;
    for (const int gpus : {1, 2}) {
      TrainingConfig t;
      t.model = named_model("tiny");
      t.precision.dtype = machine::Dtype::bfloat16;
      t.degrees.dp = gpus;
      t.batch = {2, 8, 4 / gpus};
      t.zero.stage = away.stage;
      t.zero.param_persistence_threshold = 100;
      t.zero.options.stage3_prefetch_bucket_size =
          t.zero.options.offload_optimizer.nvme.sub_group_size = 20'000;
      t.zero.options.offload_optimizer.device = zero::find_offload_device(away.states);
      t.zero.options.offload_param.device = zero::find_offload_device(away.values);
      t.zero.options.offload_param.max_in_cpu = away.max_in_cpu;
      t.zero.optimizer_path = t.zero.parameter_path = ::testing::TempDir();
      const Held planned = held(t, asked_for(t, ours), {});
      ASSERT_EQ(planned.not_held, "");
      SCOPED_TRACE(text(asked_for(t, ours)) + ", ranks " + std::to_string(gpus));
      machine::run_ranks(gpus, [&](machine::World& world) {
        const Corpus corpus = Corpus::generated(1);
        Trainer trainer(world, world.group(), world.device(), t, corpus);
        trainer.step();
        world.device().ledger().reset_peaks();
        const zero::OffloadTraffic before = trainer.optimizer_step().moved();
        trainer.step();
        if (world.rank() != 0) return;
        const machine::Ledger& gpu = world.device().ledger();
        EXPECT_EQ(planned.gpu.parameters, gpu.peak(Category::parameters));
        EXPECT_EQ(planned.gpu.gradients, gpu.peak(Category::gradients));
        EXPECT_EQ(planned.gpu.optimizer, gpu.peak(Category::optimizer));
        EXPECT_EQ(planned.gpu.activations, gpu.peak(Category::activations));
        EXPECT_LE(planned.gpu.buffers, gpu.peak(Category::buffers));  // collectives add buffers
        if (gpus == 1) {
          EXPECT_EQ(planned.gpu.buffers, gpu.peak(Category::buffers));
        }
        const machine::Device* const host = trainer.optimizer_step().host();
        const machine::Ledger none, &cpu = host ? host->ledger() : none;
        EXPECT_EQ(host != nullptr, planned.cpu.total() > 0);
        EXPECT_EQ(planned.cpu.parameters, cpu.peak(Category::parameters));
        EXPECT_EQ(planned.cpu.optimizer, cpu.peak(Category::optimizer));
        EXPECT_EQ(planned.cpu.buffers, cpu.peak(Category::buffers));
        // No parameter is frozen, so an update writes all bytes of the files.
        EXPECT_EQ(planned.nvme.total(), (trainer.optimizer_step().moved() - before).nvme_written);
        EXPECT_EQ(planned.nvme.parameters > 0, away.values == std::string("nvme"));
        EXPECT_EQ(planned.cpu.parameters > 0,
                  away.values == std::string("cpu") || away.max_in_cpu > 0);
      });
    }
  }
}

TEST(Ours, ReportsUnsupportedConfigurations) {
  TrainingConfig t = of_count(1e9, 2);
  expect_words(held(t, {ours, 0}, {}).not_held, {"shape"});
  t.model = named_model("llama2_7b");
  EXPECT_EQ(held(t, {ours, 1}, {}).not_held, "");
  t.model = named_model("gpt2_124m");
  t.model.max_position_embeddings = 4096;
  expect_words(held(t, {ours, 1}, {}).not_held, {"--max-position-embeddings 4096"});
  t.model = named_model("gpt2_124m");
  t.degrees = {.pp = 2};
  t.batch = {1, 2, 2};
  EXPECT_EQ(held(t, {ours, 1}, {}).not_held, "");
  for (int stage = 2; stage <= 3; ++stage) EXPECT_EQ(held(t, {ours, stage}, {}).not_held, "");
  const Held away = held(t, {ours, 1, "cpu"}, {}), beside = held(t, {ours, 1}, {});
  EXPECT_EQ(away.gpu.optimizer, 0);
  EXPECT_GE(away.cpu.optimizer, beside.gpu.optimizer);
  EXPECT_EQ(held(t, {ours, 1, "nvme"}, {}).nvme.optimizer > 0, true);
  expect_words(held(t, {ours, 1, "cpu", "cpu"}, {}).not_held, {"offload_param cpu with stage 1"});
  t.degrees.cp = 2;
  expect_words(held(t, {ours, 1}, {}).not_held, {"context-parallel-size 2", "use-flash-attn"});
  t.activations.use_flash_attn = true;
  const Held split = held(t, {ours, 1}, {});
  EXPECT_EQ(split.not_held, "");
  EXPECT_NEAR(split.gpu.optimizer, beside.gpu.optimizer / 2, 1e-3 * beside.gpu.optimizer);
  t.context.comm_type = layers::CpCommType::a2a_p2p;
  expect_words(held(t, {ours, 1}, {}).not_held, {"cp-a2a-size is 2"});
  t.context = {};
  t.activations.use_flash_attn = false;
  t.degrees = {.tp = 5, .dp = 2};
  expect_words(held(t, {ours, 1}, {}).not_held, {"tp is 5"});
  t.degrees = {};
  t.batch = {1, 1, 1};
  t.activations.use_flash_attn = true;
  t.activations.recompute_granularity = layers::RecomputeGranularity::selective;
  EXPECT_EQ(held(t, {ours, 1}, {}).not_held, "");
  t.activations.recompute_num_layers = 2;
  expect_words(held(t, {ours, 1}, {}).not_held, {"recompute-num-layers 2"});
}

TEST(Plan, IsPrintedAsATableAndAsJson) {
  const Resolved resolved = resolve({.deepspeed_file = SHARDMARK_FIXTURES "/t5_zero3_offload.json",
                                     .words = {"--bf16"},
                                     .model = "gpt2_1558m",
                                     .gpus = 8});
  const Plan plan = make_plan(resolved, {});
  expect_words(text(plan),
               {"FITS: ZeRO stage 3, optimizer cpu, parameters cpu", "1557611200 parameters",
                ">    3   cpu        cpu", "lowest ZeRO stage that fits: stage 3\n",
                "keys of the configuration have no effect", "--explain"});
  expect_words(explanation(plan),
               {"Ψ = ", "d = 8 shards", "paper", "Megatron-LM", "DeepSpeed's estimator", "ours",
                "> stage 3, optimizer cpu, parameters cpu", "4Ψ", "zero_optimization.stage"});
  const auto parsed = harness::Json::parse(json(plan));
  int asked = 0;
  std::map<std::string, int> countings;
  for (const auto& row : parsed.at("rows")) {
    ++countings[row.at("counting").text()];
    asked += row.at("asked_for").get<bool>();
    if (row.contains("not_held")) continue;
    double sum = 0;
    for (const char* category : {"parameters", "gradients", "optimizer", "activations", "buffers"})
      sum += row.at("gpu_bytes").at(category).get<double>();
    EXPECT_DOUBLE_EQ(sum, row.at("gpu_bytes").at("total").get<double>());
  }
  EXPECT_EQ(asked, 3);  // the paper's, DeepSpeed's and ours
  EXPECT_EQ(countings["paper"], 12);
  EXPECT_EQ(countings["ours"], 5);
  EXPECT_EQ(parsed.at("configuration").at("keys").at("zero_optimization.stage").at("value"), 3);
}

std::string plan_of(const Sources& sources, const Machine& machine) {
  return text(make_plan(resolve(sources), machine));
}

TEST(Plan, FitsOneScreen) {
  const std::string fixtures = SHARDMARK_FIXTURES;
  for (const Sources& sources :
       {Sources{.deepspeed_file = fixtures + "/megatron_deepspeed.json",
       .words = {"--fp16"},
       .model = "gpt2_1558m",
       .gpus = 32,
       .ignore_unknown = true},
        Sources{.deepspeed_file = fixtures + "/t5_zero2_offload.json",
        .words = {"--bf16"},
        .model = "gpt2_1558m",
        .gpus = 64},
        Sources{.words = {"--bf16"}, .parameters = 1'000'000'000'000, .gpus = 4096}}) {
    const std::string plan = plan_of(sources, {.cpu_memory = 10e9});
    EXPECT_LE(std::ranges::count(plan, '\n'), 30) << plan;
    std::istringstream lines(plan);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100) << line;
  }
}

TEST(Plan, NamesTheLimitAndTheLargestModel) {
  const auto plan = [](double parameters, Machine machine) {
    return plan_of(
        {.words = {"--bf16"}, .parameters = static_cast<std::int64_t>(parameters), .gpus = 8},
        machine);
  };
  // ZeRO stage 0 has 16 bytes per parameter, including 12 of the optimizer, and 1 GB of buffers.
  expect_words(plan(1e9, {}), {"FITS: ZeRO stage 0: 17.00 of 80.00 GB",
                               "optimizer states take most: 12.00 of 17.00 GB",
                               "largest model that fits: 4.94B", "that fits: stage 0\n"});
  expect_words(plan(10e9, {}), {"DOES NOT FIT: ZeRO stage 0: 161.00 of 80.00 GB", "161.00!",
                                "that fits: stage 1\n"});  // 40 + 120 / 8
  // ZeRO stage 3 has 160 GB of states, and 8.75 GB of gradients and states per rank on the host.
  expect_words(plan(10e9, {.gpu_memory = 10e9}), {"that fits: stage 3, optimizer cpu"});
  expect_words(plan(10e9, {.gpu_memory = 1e9, .cpu_memory = 1e9}),
               {"that fits: no stage, with or without offload"});
}

}  // namespace
}  // namespace suite::configuration
