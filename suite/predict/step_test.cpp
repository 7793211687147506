#include "suite/predict/step.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "collectives/communicator/calls.h"
#include "layers/models/gpt_cost.h"
#include "pipeline/simulate.h"
#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"
#include "suite/predict/kernel_time.h"
#include "suite/predict/stage_time.h"
#include "suite/predict/zero/data_parallel.h"

namespace suite::predict {
namespace {

TrainingConfig gpt3(machine::Degrees degrees, int micro_batches) {
  TrainingConfig config;
  config.model = named_model("gpt3_175b");
  config.model.vocabulary = 51200;
  config.degrees = degrees;
  config.precision.dtype = machine::Dtype::bfloat16;
  config.batch.global_batch_size = degrees.dp * micro_batches;
  config.activations.recompute_granularity = layers::RecomputeGranularity::full;
  config.activations.sequence_parallel = degrees.tp > 1;
  return config;
}

TrainingConfig mixtral(machine::Degrees degrees, int experts, int micro_batches) {
  TrainingConfig config = gpt3(degrees, micro_batches);
  config.model = named_model("mixtral_8x7b");
  config.expert_parallel = experts;
  config.activations.recompute_granularity = layers::RecomputeGranularity::none;
  config.activations.use_flash_attn = true;
  return config;
}

std::vector<TrainingConfig> several() {
  std::vector<TrainingConfig> all{gpt3({.tp = 8, .dp = 2, .pp = 8}, 16),
                                  gpt3({.tp = 4, .dp = 16}, 2), gpt3({.dp = 64}, 3),
                                  gpt3({.tp = 8, .cp = 2, .dp = 4, .pp = 2}, 8)};
  all[1].zero.stage = 1;
  all[2].zero.stage = 3;
  all[3].activations.recompute_granularity = layers::RecomputeGranularity::none;
  all.push_back(all[0]);
  all.back().pipeline.schedule = "zb_h1";
  all.push_back(all[2]);
  all.back().zero.options.offload_optimizer.device = zero::OffloadDevice::nvme;
  all.push_back(mixtral({.dp = 16, .pp = 4}, 8, 16));
  all.back().zero.stage = 1;
  all.push_back(mixtral({.dp = 32}, 4, 2));
  all.back().activations.recompute_granularity = layers::RecomputeGranularity::full;
  for (const auto& change : std::initializer_list<std::function<void(TrainingConfig&)>>{
           [](TrainingConfig& c) {
             c.zero.options.plus_plus = {8, true, true};
           },
           [](TrainingConfig& c) { c.optimizer.type = "muon"; },
           [](TrainingConfig& c) { c.zero.stage = 0, c.optimizer.type = "one_bit_adam"; }}) {
    all.push_back(gpt3({.tp = 2, .dp = 32}, 2));
    all.back().model.layers = 2;
    all.back().zero.stage = 3;
    change(all.back());
  }
  return all;
}

const GroupTime* group(const Prediction& p, const std::string& name) {
  for (const GroupTime& one : p.groups)
    if (one.group == name) return &one;
  return nullptr;
}

TEST(PredictStep, PartsAddUpToTheStep) {
  const Cluster cluster = read_cluster("dgx_h100");
  for (const Software& software : all_software())
    for (const TrainingConfig& config : several()) {
      const Prediction p = predict_step(config, cluster, software);
      EXPECT_NEAR(p.stage.computing() + p.exposed_s() + p.bubble_s + p.optimizer_s + p.offload_s,
                  p.step_s, 1e-9 * p.step_s)
          << software.name;
      EXPECT_GT(p.hfu, p.mfu - 1e-12);
      EXPECT_LT(p.hfu, 1);
    }
}

TEST(PredictStep, IsMonotoneInEveryRate) {
  const std::vector<std::pair<const char*, std::function<void(Cluster&)>>> faster{
      {"half", [](Cluster& c) { c.gpu.half *= 2; }},
      {"memory", [](Cluster& c) { c.gpu.bandwidth *= 2; }},
      {"node", [](Cluster& c) { c.node.bandwidth *= 2; }},
      {"network", [](Cluster& c) { c.network.bandwidth *= 2; }},
      {"latency", [](Cluster& c) { c.network.latency_s /= 2, c.node.latency_s /= 2; }},
      {"host", [](Cluster& c) { c.host_bandwidth *= 2, c.pcie *= 2, c.nvme_read *= 2; }},
  };
  const Cluster cluster = read_cluster("dgx_a100");
  for (const Software& software : all_software())
    for (const TrainingConfig& config : several()) {
      const double before = predict_step(config, cluster, software).step_s;
      for (const auto& [what, change] : faster) {
        Cluster better = cluster;
        change(better);
        EXPECT_LE(predict_step(config, better, software).step_s, before * (1 + 1e-12))
            << what << " " << software.name;
      }
      Cluster all = cluster;
      for (const auto& [what, change] : faster) change(all);
      EXPECT_LT(predict_step(config, all, software).step_s, before);
    }
}

TEST(PredictStep, ATwiceAsFastMachineTakesHalfTheTime) {
  Cluster cluster = read_cluster("dgx_a100");
  for (const TrainingConfig& config : several()) {
    Cluster twice = cluster;
    for (double* rate : {&twice.gpu.half, &twice.gpu.float32, &twice.gpu.bandwidth,
                         &twice.node.bandwidth, &twice.network.bandwidth, &twice.host_bandwidth,
                         &twice.pcie, &twice.nvme_read, &twice.nvme_write})
      *rate *= 2;
    for (double* time : {&twice.gpu.kernel_s, &twice.node.latency_s, &twice.network.latency_s})
      *time /= 2;
    const Software& software = find_software("megatron_core");
    EXPECT_NEAR(predict_step(config, twice, software).step_s * 2,
                predict_step(config, cluster, software).step_s, 1e-9);
  }
}

// The oracles of the layers compare these calls with the bytes that a run counts.
TEST(PredictStep, BytesOfTensorParallelismAreThoseOfTheOracle) {
  const TrainingConfig config = gpt3({.tp = 8, .dp = 2}, 3);
  const layers::StageCase stage{.tp = 8,
                                .stage = {},
                                .sequences = 1,
                                .dtype = config.precision.dtype,
                                .options = config.activations};
  collectives::CallsCost cost;
  for (const auto& calls : {layers::forward_calls(config.model, stage),
                            layers::backward_input_calls(config.model, stage),
                            layers::backward_weights_calls(config.model, stage)})
    for (const collectives::CollectiveCalls& call : calls) cost.add(call, "ring", 0);
  double bytes = 0;
  for (const auto& [label, traffic] : cost.traffic("tp"))
    bytes += static_cast<double>(traffic.bytes_sent);
  const Prediction p =
      predict_step(config, read_cluster("dgx_h100"), find_software("megatron_core"));
  ASSERT_NE(group(p, "tp"), nullptr);
  EXPECT_NEAR(group(p, "tp")->bytes / (3 * bytes), 1, 1e-12);
}

TEST(PredictStep, TpCommOverlapHidesTheCommunicationOfTensorParallelism) {
  const Cluster cluster = read_cluster("dgx_a100");
  const Software& software = find_software("megatron_2021");
  TrainingConfig config = gpt3({.tp = 8, .dp = 2, .pp = 8}, 16);
  const Prediction without = predict_step(config, cluster, software);
  config.activations.tp_comm.enabled = true;
  const Prediction with = predict_step(config, cluster, software);
  EXPECT_LT(with.step_s, without.step_s);
  EXPECT_EQ(group(with, "tp")->bytes, group(without, "tp")->bytes);
}

// Blockwise attention over cp runs its forward again, with its messages.
TEST(PredictStep, SelectiveRecomputationSendsOverContextsAgain) {
  TrainingConfig config = gpt3({.tp = 8, .cp = 2, .dp = 4, .pp = 2}, 8);
  config.activations.recompute_granularity = layers::RecomputeGranularity::selective;
  config.activations.use_flash_attn = true;
  const Cluster cluster = read_cluster("dgx_a100");
  const StageSeconds stage = stage_seconds(config, cluster, find_software("megatron_core"), 0);
  EXPECT_GT(stage.forward.cp + stage.forward.cp_hidden, 0);
  EXPECT_DOUBLE_EQ(stage.recompute.cp + stage.recompute.cp_hidden,
                   stage.forward.cp + stage.forward.cp_hidden);
}

// Rajbhandari et al. 2020, section 7: 2 Psi, 2 Psi and 3 Psi elements; here with the bytes of
// gradients and values, and m micro-batches.
TEST(PredictStep, BytesOfDataParallelismAreThePapers) {
  const Cluster cluster = read_cluster("dgx_h100");
  Software software = find_software("megatron_core");
  software.gradient_bytes = 2;
  const int d = 16, m = 3;
  TrainingConfig config = gpt3({.dp = d}, m);
  config.activations.recompute_granularity = layers::RecomputeGranularity::none;
  const double psi = 2 * configuration::parameters_of(config.model) * (d - 1) / d;
  for (const auto& [stage, times] : {std::pair{0, 2}, {1, 2}, {2, m + 1}, {3, 3 * m}}) {
    config.zero.stage = stage;
    const Prediction p = predict_step(config, cluster, software);
    EXPECT_NEAR(group(p, "dp")->bytes / psi, times, 0.002 * times) << stage;  // padded vocabulary
  }
}

// Each of the 4,096 tokens goes to two of eight experts, each on a rank of its own: 1,024 of its
// 8,192 rows stay. Dispatch sends the others, and combine as many rows of other ranks' tokens, in
// forward and in backward. Before, the ranks gather the counts of eight experts.
TEST(PredictStep, ExpertsGetEveryTokenTwice) {
  const int m = 16, layers = 32 / 4;
  const Prediction p = predict_step(mixtral({.dp = 16, .pp = 4}, 8, m), read_cluster("dgx_h100"),
                                    find_software("megatron_core"));
  ASSERT_NE(group(p, "ep"), nullptr);
  EXPECT_EQ(group(p, "ep")->ranks, 8);
  EXPECT_FALSE(group(p, "ep")->on_network);
  EXPECT_GT(group(p, "ep")->exposed_s, 0);
  const double rows = 2 * (8192 - 1024), pass = rows * 4096 * 2, counts = 7 * 8 * 4;
  EXPECT_DOUBLE_EQ(group(p, "ep")->bytes, m * layers * (2 * pass + counts));
}

// Each of 8 ranks has 2,048 tokens. Both ranks of tp that share an expert get every row. 1,024 rows
// stay on their rank.
TEST(PredictStep, ExpertsOverTensorParallelRanksGetEveryRowTwice) {
  const int m = 4, layers = 32 / 4;
  const Prediction p = predict_step(mixtral({.tp = 2, .dp = 8, .pp = 4}, 4, m),
                                    read_cluster("dgx_h100"), find_software("megatron_core"));
  EXPECT_EQ(group(p, "ep")->ranks, 8);
  const double rows = 2 * (8192 - 1024), pass = rows * 4096 * 2, counts = 7 * 8 * 4, loads = 8 * 8;
  EXPECT_DOUBLE_EQ(group(p, "ep")->bytes, m * layers * (2 * pass + counts + loads));
}

// With whole experts each of the 2,048 tokens of a rank goes to two of eight ranks. Sixteen ranks
// of a stage hold each expert twice, whatever tp is.
TEST(PredictStep, WholeExpertsGetEveryRowOnceAndAreReducedOverTp) {
  const int m = 4, layers = 32 / 4;
  TrainingConfig config = mixtral({.tp = 2, .dp = 8, .pp = 4}, 8, m);
  config.expert_tensor_parallel = 1;
  const Cluster cluster = read_cluster("dgx_h100");
  const Prediction p = predict_step(config, cluster, find_software("megatron_core"));
  EXPECT_EQ(group(p, "ep")->ranks, 8);
  const double rows = 2 * (4096 - 512), pass = rows * 4096 * 2, counts = 7 * 8 * 4, loads = 8 * 8;
  EXPECT_DOUBLE_EQ(group(p, "ep")->bytes, m * layers * (2 * pass + counts + loads));
  const std::vector<Replicated> parts = replicated(config, cluster);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].ranks, 8);
  EXPECT_EQ(parts[1].ranks, 2);
  EXPECT_EQ(parts[1].parameters, 3.0 * 4096 * 14336 * layers);  // one expert of each layer
  config.expert_parallel = 16;
  EXPECT_THROW(predict_step(config, cluster, find_software("megatron_core")),
               std::invalid_argument);
}

TEST(PredictStep, OneExpertIsAPerceptronWithARouter) {
  const Cluster cluster = read_cluster("dgx_h100");
  const Software& software = find_software("megatron_core");
  TrainingConfig one = mixtral({.dp = 8}, 1, 1);
  one.model.moe.num_experts = one.model.moe.topk = 1;
  TrainingConfig dense = one;
  dense.model.moe.num_experts = 0;
  const StageSeconds with = stage_seconds(one, cluster, software, 0),
                     without = stage_seconds(dense, cluster, software, 0);
  const double n = 4096, h = 4096;
  const auto router = [&](Gemm gemm) {
    return 32 * gemm_s(cluster.gpu, gemm, one.precision.dtype);
  };
  EXPECT_NEAR(with.forward.gemm - without.forward.gemm, router({n, 1, h}), 1e-12);
  EXPECT_NEAR(with.backward_input.gemm - without.backward_input.gemm, router({n, h, 1}), 1e-12);
  EXPECT_NEAR(with.backward_weights.gemm - without.backward_weights.gemm, router({h, 1, n}), 1e-12);
  EXPECT_GT(with.forward.memory, without.forward.memory);  // copies of rows
}

// The replicas of an expert are every eighth rank; all ranks hold the other parameters.
TEST(PredictStep, GradientsOfExpertsAreReducedAmongTheirReplicas) {
  const int d = 32, e = 8;
  Software software = find_software("megatron_core");
  software.gradient_bytes = 2;
  TrainingConfig config = mixtral({.dp = d}, e, 1);
  config.zero.stage = 1;
  const double of_experts = 32.0 * 3 * 14336 * 4096;  // one expert of each layer
  const double others = configuration::parameters_of(config.model) - 8 * of_experts;
  const int replicas = d / e;
  const double whole = others * (d - 1) / d + of_experts * (replicas - 1) / replicas;
  const Prediction p = predict_step(config, read_cluster("dgx_h100"), software);
  EXPECT_NEAR(group(p, "dp")->bytes / (2 * 2 * whole), 1, 1e-4);
}

TEST(PredictStep, TheBubbleIsThePapersIfStagesAreEqual) {
  Cluster cluster = read_cluster("dgx_h100");
  cluster.network.latency_s = cluster.node.latency_s = 0;
  cluster.network.bandwidth = cluster.node.bandwidth = 1e20;
  const int p = 8, m = 32;
  TrainingConfig config = gpt3({.tp = 8, .pp = p}, m);
  config.model.vocabulary = 8;  // the ends cost as good as nothing
  const Prediction one = predict_step(config, cluster, find_software("megatron_core"));
  EXPECT_NEAR(one.bubble_s / one.stage.computing(), (p - 1.0) / m, 0.01);
  config.pipeline.schedule = "interleaved_1f1b";
  config.pipeline.virtual_stages = 3;
  const Prediction three = predict_step(config, cluster, find_software("megatron_core"));
  EXPECT_NEAR(three.bubble_s / three.stage.computing(), (p - 1.0) / m / 3, 0.01);
}

TEST(PredictStep, SixteenThousandGpusTakeSeconds) {
  const auto begin = std::chrono::steady_clock::now();
  const Prediction p = predict_step(gpt3({.tp = 8, .dp = 64, .pp = 32}, 256),
                                    read_cluster("dgx_h100"), find_software("megatron_core"));
  EXPECT_GT(p.mfu, 0.1);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 10);
}

TEST(PredictStep, RejectsBatchesAndStagesThatDoNotDivide) {
  const Cluster cluster = read_cluster("dgx_h100");
  TrainingConfig config = gpt3({.dp = 8}, 1);
  config.batch.global_batch_size = 4;
  EXPECT_THROW(predict_step(config, cluster, find_software("megatron_core")),
               std::invalid_argument);
  EXPECT_THROW(predict_step(gpt3({.pp = 7}, 7), cluster, find_software("megatron_core")),
               std::invalid_argument);
  EXPECT_THROW(predict_step(mixtral({.dp = 8}, 3, 1), cluster, find_software("megatron_core")),
               std::invalid_argument);
  config = mixtral({.tp = 2, .dp = 8}, 8, 1);
  EXPECT_NO_THROW(predict_step(config, cluster, find_software("megatron_core")));
  config.activations.sequence_parallel = false;
  EXPECT_THROW(predict_step(config, cluster, find_software("megatron_core")),
               std::invalid_argument);
  EXPECT_THROW(find_software("megatron"), std::invalid_argument);
}

}  // namespace
}  // namespace suite::predict
