#include "suite/predict/search/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "suite/configuration/models.h"

namespace suite::predict {
namespace {

const Software& software() { return find_software("megatron_core"); }

const Rule& rule(std::string_view text) {
  return *std::ranges::find_if(rules(),
                               [&](const Rule& one) { return one.text.starts_with(text); });
}

bool keeps(std::string_view text, const machine::Degrees& degrees, double parameters) {
  TrainingConfig config;
  config.degrees = degrees;
  return rule(text).keeps(config, {.model = "m",
                                   .gpus = 64,
                                   .gpus_per_node = 8,
                                   .parameters = parameters,
                                   .smallest_parts = 4});
}

TEST(Rules, KeepWhatTheirTextSays) {
  EXPECT_TRUE(keeps("tp stays", {.tp = 8, .dp = 8}, 1e9));
  EXPECT_FALSE(keeps("tp stays", {.tp = 16, .dp = 4}, 1e9));
  EXPECT_TRUE(keeps("pp only", {.tp = 8, .dp = 2, .pp = 4}, 1e9));
  EXPECT_TRUE(keeps("pp only", {.tp = 1, .dp = 64}, 1e9));
  EXPECT_FALSE(keeps("pp only", {.tp = 4, .dp = 4, .pp = 4}, 1e9));
  EXPECT_TRUE(keeps("tp x pp", {.tp = 2, .dp = 16, .pp = 2}, 1e9));
  EXPECT_FALSE(keeps("tp x pp", {.tp = 4, .dp = 8, .pp = 2}, 1e9));
  EXPECT_TRUE(keeps("dp up to 1e8", {.dp = 64}, 5e7));
  EXPECT_FALSE(keeps("dp up to 1e8", {.dp = 64}, 5e8));
  EXPECT_TRUE(keeps("dp up to 1e8", {.tp = 2, .dp = 32}, 5e8));
  EXPECT_FALSE(keeps("dp up to 1e8", {.tp = 2, .dp = 32}, 2e9));
  EXPECT_TRUE(keeps("dp up to 1e8", {.tp = 2, .dp = 16, .pp = 2}, 2e9));
  EXPECT_TRUE(keeps("dp up to 1e9", {.dp = 64}, 1e9));
  EXPECT_FALSE(keeps("dp up to 1e9", {.dp = 64}, 2e9));
  EXPECT_TRUE(keeps("dp up to 1e9", {.dp = 32, .pp = 2}, 2e9));
  EXPECT_FALSE(keeps("dp up to 1e9", {.dp = 32, .pp = 2}, 2e10));
  EXPECT_TRUE(keeps("dp up to 1e9", {.tp = 2, .dp = 16, .pp = 2}, 2e10));
}

// The best that keeps a rule is the shortest step of a plain loop over all candidates.
TEST(Rules, AreComparedWithAllCandidates) {
  const Cluster cluster = read_cluster("pcie_node");
  const RuleModel model{"gpt2_124m", 32};
  const int gpus = 2 * cluster.gpus_per_node;
  const std::vector<CheckedRule> checked = check_rules(cluster, software(), {model}, {gpus});
  TrainingConfig base;
  base.model = named_model(model.name);
  base.precision.dtype = machine::Dtype::bfloat16;
  base.batch.global_batch_size = model.global_batch_size;
  base.activations.use_flash_attn = true;
  ASSERT_EQ(checked.size(), rules().size());
  int slower = 0;
  for (const CheckedRule& one : checked) {
    ASSERT_EQ(one.cases.size(), 1U) << one.rule.text;
    const RuleCase& found = one.cases[0];
    double best = INFINITY, keeping = INFINITY;
    for (const TrainingConfig& config : grid(base, cluster, gpus, 4 * cluster.gpus_per_node)) {
      const Prediction p = predict_step(config, cluster, software());
      if (!p.fits) continue;
      best = std::min(best, p.step_s);
      if (one.rule.keeps(config, found.situation)) keeping = std::min(keeping, p.step_s);
    }
    EXPECT_EQ(found.best.prediction.step_s, best) << one.rule.text;
    ASSERT_TRUE(found.keeping) << one.rule.text;
    EXPECT_EQ(found.keeping->prediction.step_s, keeping) << one.rule.text;
    EXPECT_EQ(found.holds(), keeping <= 1.05 * best) << one.rule.text;
    slower += keeping > best ? 1 : 0;
  }
  EXPECT_GT(slower, 0);
}

// A tensor-parallel group that leaves its node waits for the network.
TEST(Rules, TensorParallelismStaysWithinANodeOfASlowNetwork) {
  Cluster cluster = read_cluster("dgx_a100");
  cluster.network.bandwidth /= 16;
  const std::vector<CheckedRule> checked =
      check_rules(cluster, software(), {{"llama2_13b", 64}}, {32});
  ASSERT_EQ(checked[0].cases.size(), 1U);
  EXPECT_TRUE(checked[0].cases[0].holds()) << text(checked);
  EXPECT_NE(text(checked).find("tp stays within a node"), std::string::npos);
}

TEST(Rules, ExceptionsAreListed) {
  RuleCase exception{.situation = {.model = "m", .gpus = 16, .gpus_per_node = 8}};
  exception.best.config.degrees = {.tp = 2, .dp = 8};
  exception.best.prediction.step_s = 1;
  std::vector<CheckedRule> checked{{rules()[0], {exception}}};
  EXPECT_NE(text(checked).find("holds in 0 of 1 cases\n  m          on  16 GPUs: no step keeps "
                               "it; the fastest: tp 2 pp 1 dp 8 ZeRO 0\n"),
            std::string::npos)
      << text(checked);
  checked[0].cases[0].keeping = exception.best;
  checked[0].cases[0].keeping->prediction.step_s = 1.5;
  EXPECT_NE(text(checked).find(" 50.0 % slower, tp 2 pp 1"), std::string::npos) << text(checked);
  checked[0].cases[0].keeping->prediction.step_s = 1.04;
  EXPECT_NE(text(checked).find("holds in 1 of 1 cases"), std::string::npos) << text(checked);
}

}  // namespace
}  // namespace suite::predict
