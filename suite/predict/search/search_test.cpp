#include "suite/predict/search/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "suite/configuration/models.h"

namespace suite::predict {
namespace {

TrainingConfig gpt3() {
  TrainingConfig config;
  config.model = named_model("gpt3_175b");
  config.precision.dtype = machine::Dtype::bfloat16;
  config.batch.global_batch_size = 1536;
  config.activations.use_flash_attn = true;
  return config;
}

// Every n-th candidate of the grid, all simulated.
TEST(Search, ChoosesTheBestOfAnExhaustiveSimulation) {
  const Cluster cluster = read_cluster("dgx_a100");
  const Software& software = find_software("megatron_core");
  std::vector<TrainingConfig> reduced;
  const std::vector<TrainingConfig> all = grid(gpt3(), cluster, 1024);
  for (std::size_t i = 0; i < all.size(); i += 7)
    if (all[i].degrees.pp <= 16 && all[i].micro_batches() <= 64) reduced.push_back(all[i]);
  ASSERT_GT(reduced.size(), 100U);
  const Found found = Candidates(reduced, cluster, software, 80e9).fastest(3);
  std::vector<double> times;
  for (const TrainingConfig& one : reduced) {
    const Prediction p = predict_step(one, cluster, software);
    if (p.fits) times.push_back(p.step_s);
  }
  std::ranges::sort(times);
  ASSERT_GE(found.best.size(), 3U);
  EXPECT_EQ(found.fitting, times.size());
  EXPECT_LT(found.simulated, found.fitting);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(found.best[i].prediction.step_s, times[i]) << i;
}

// A choice of the front is faster than all that need no more memory.
TEST(Search, TheFrontHasWhatNoOtherCandidateBeats) {
  const Cluster cluster = read_cluster("dgx_a100");
  const Software& software = find_software("megatron_core");
  std::vector<TrainingConfig> reduced;
  const std::vector<TrainingConfig> all = grid(gpt3(), cluster, 1024);
  for (std::size_t i = 0; i < all.size(); i += 2)
    if (all[i].degrees.pp <= 16 && all[i].micro_batches() <= 64) reduced.push_back(all[i]);
  std::vector<std::pair<double, double>> simulated, expected, found;
  for (const TrainingConfig& one : reduced) {
    const Prediction p = predict_step(one, cluster, software);
    if (p.fits) simulated.emplace_back(p.held.gpu.total(), p.step_s);
  }
  for (const auto& one : simulated)
    if (std::ranges::none_of(simulated, [&](const auto& other) {
          return other != one && other.first <= one.first && other.second <= one.second;
        }))
      expected.push_back(one);
  std::ranges::sort(expected);
  const auto repeated = std::ranges::unique(expected);
  expected.erase(repeated.begin(), repeated.end());
  for (const Choice& one : Candidates(reduced, cluster, software, 80e9).pareto())
    found.emplace_back(one.prediction.held.gpu.total(), one.prediction.step_s);
  EXPECT_GT(expected.size(), 3U);
  EXPECT_EQ(found, expected);
}

// ZeRO++ is tried only if the configuration names it, in stage 3, and if the ranks of dp leave a
// node.
TEST(Search, TriesZeroPlusPlusThatIsNamed) {
  const Cluster cluster = read_cluster("dgx_a100");
  TrainingConfig config = gpt3();
  config.model = named_model("llama2_7b");
  config.batch.global_batch_size = 64;
  const auto uses = [](const TrainingConfig& one) {
    return one.zero.options.plus_plus.quantized_weights;
  };
  const TrainingConfig plain = config;
  config.zero.options.plus_plus = {8, true, true};
  for (const int gpus : {8, 32}) {
    const std::vector<TrainingConfig> all = grid(config, cluster, gpus);
    EXPECT_EQ(std::ranges::count_if(all, uses) > 0, gpus > 8);
    const auto named = static_cast<std::size_t>(std::ranges::count_if(all, uses));
    EXPECT_EQ(all.size() - named, grid(plain, cluster, gpus).size());
    for (const TrainingConfig& one : all) EXPECT_TRUE(!uses(one) || one.zero.stage == 3);
  }
  Cluster slow = cluster;
  slow.network.bandwidth /= 200;
  std::vector<TrainingConfig> of_stage_3 = grid(config, slow, 32);
  std::erase_if(of_stage_3, [](const TrainingConfig& one) {
    return one.zero.stage != 3 || one.batch.micro_batch_size != 1 || one.degrees.tp > 1;
  });
  const Found found =
      Candidates(of_stage_3, slow, find_software("megatron_core"), cluster.gpu.memory).fastest(3);
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(uses(found.best.front().config));
  EXPECT_NE(text(found).find(" 3++ "), std::string::npos);
  EXPECT_NE(deepspeed_config(found.best.front().config).find("zero_hpz_partition_size"),
            std::string::npos);
}

// No step has a 1-bit optimizer in stage 1, and a model with a rate of no cluster has no candidate.
TEST(Search, LeavesOutCandidatesThatNoStepSupports) {
  const Cluster cluster = read_cluster("dgx_a100");
  TrainingConfig config = gpt3();
  config.model = named_model("llama2_7b");
  config.batch.global_batch_size = 64;
  config.optimizer.type = "one_bit_adam";
  const Found found =
      Candidates(grid(config, cluster, 32), cluster, find_software("megatron_core"), 1e15)
          .fastest(2);
  ASSERT_FALSE(found.best.empty());
  for (const Choice& one : found.best) EXPECT_EQ(one.config.zero.stage, 0);
  config.precision.dtype = machine::Dtype::float64;
  EXPECT_THROW(Candidates(grid(config, cluster, 32), cluster, find_software("megatron_core"), 1e15)
                   .fastest(2),
               std::invalid_argument);
}

TEST(Search, KeepsTheMemoryLimitAndGetsFasterWithMore) {
  const Cluster cluster = read_cluster("dgx_a100");
  const Software& software = find_software("megatron_core");
  TrainingConfig config = gpt3();
  config.model = named_model("llama2_7b");
  config.batch.global_batch_size = 64;
  const std::vector<TrainingConfig> all = grid(config, cluster, 16);
  double before = 1e300;
  for (const double memory : {16e9, 24e9, 40e9, 80e9}) {
    const Found found = Candidates(all, cluster, software, memory).fastest(1);
    ASSERT_EQ(found.best.size(), 1U) << memory;
    EXPECT_LE(found.best[0].prediction.held.gpu.total(), memory);
    EXPECT_LE(found.best[0].prediction.step_s, before);
    before = found.best[0].prediction.step_s;
  }
  EXPECT_TRUE(Candidates(all, cluster, software, 1e9).fastest().best.empty());
}

TEST(Search, WalksTheDegreesOfExperts) {
  TrainingConfig config = gpt3();
  config.model = named_model("mixtral_8x7b");
  config.batch.global_batch_size = 256;
  const Cluster cluster = read_cluster("dgx_h100");
  const std::vector<TrainingConfig> all = grid(config, cluster, 64);
  std::set<int> degrees, tensor_parallel;
  for (const TrainingConfig& one : all) {
    EXPECT_EQ(one.shards() % one.expert_parallel, 0);
    EXPECT_EQ(one.activations.sequence_parallel, one.degrees.tp > 1);
    degrees.insert(one.expert_parallel);
    tensor_parallel.insert(one.degrees.tp);
  }
  EXPECT_EQ(degrees, (std::set{1, 2, 4, 8}));
  EXPECT_EQ(tensor_parallel, (std::set{1, 2, 4, 8}));
  const Found found = Candidates(all, cluster, find_software("megatron_core"), 80e9).fastest(1);
  ASSERT_EQ(found.best.size(), 1U);
  EXPECT_GT(found.best[0].config.expert_parallel, 1);
  const std::string arguments = megatron_arguments(found.best[0].config);
  config.expert_tensor_parallel = 1;  // experts divide the ranks of tp, too
  bool over_tp = false;
  for (const TrainingConfig& one : grid(config, cluster, 16)) {
    EXPECT_EQ(one.degrees.tp * one.shards() % one.expert_parallel, 0);
    if (over_tp || one.shards() % one.expert_parallel == 0) continue;
    over_tp = true;
    EXPECT_NE(megatron_arguments(one).find("--expert-tensor-parallel-size 1\n"), std::string::npos);
  }
  EXPECT_TRUE(over_tp);
  for (const char* word : {"--num-experts 8\n", "--moe-router-topk 2\n",
                           "--moe-ffn-hidden-size 14336\n", "--expert-model-parallel-size "})
    EXPECT_NE(arguments.find(word), std::string::npos) << word;
}

TEST(Search, EveryCandidateUsesAllGpus) {
  const std::vector<TrainingConfig> all = grid(gpt3(), read_cluster("dgx_h100"), 96);
  for (const TrainingConfig& one : all) {
    EXPECT_EQ(one.degrees.ranks(), 96);
    EXPECT_EQ(one.micro_batches() * one.batch.micro_batch_size * one.degrees.dp, 1536);
  }
}

}  // namespace
}  // namespace suite::predict
