#include "suite/predict/zero/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"
#include "suite/predict/step.h"
#include "suite/predict/zero/update_time.h"

namespace suite::predict {
namespace {

using machine::Dtype;

TrainingConfig gpt(int stage, int m = 3, Dtype dtype = Dtype::bfloat16) {
  TrainingConfig config;
  config.model = named_model("gpt3_175b");
  config.model.vocabulary = padded_vocabulary(config.model, 1);
  config.model.layers = 2;
  config.degrees = {.dp = 64};
  config.precision.dtype = dtype;
  config.batch.global_batch_size = 64 * m;
  config.zero.stage = stage;
  return config;
}

Prediction predicted(const TrainingConfig& config, const char* cluster = "dgx_h100") {
  return predict_step(config, read_cluster(cluster), find_software("megatron_core"));
}

double bytes(const Prediction& p, const std::string& name) {
  for (const GroupTime& one : p.groups)
    if (one.group == name) return one.bytes;
  return 0;
}

// Returns a step that declares its stage, as one with ZeRO++ does, but gathers all values in their
// own dtype over dp.
TrainingConfig declared(TrainingConfig config) {
  config.zero.param_persistence_threshold = 0;
  return config;
}

// 8 bits and a scale of 32 bits for 64 elements are half of bfloat16 and a quarter of float, but
// for the scales. Only gathers are coded.
TEST(PredictZeroPlusPlus, QuantizedWeightsDivideTheGathersExactly) {
  for (const auto& [dtype, width] : {std::pair{Dtype::bfloat16, 2.0}, {Dtype::float32, 4.0}}) {
    TrainingConfig plain = declared(gpt(3, 3, dtype)), coded = plain;
    coded.zero.options.plus_plus.quantized_weights = true;
    const double before = bytes(predicted(plain), "dp"), after = bytes(predicted(coded), "dp");
    const ZeroCalls calls =
        zero_calls(plain, read_cluster("dgx_h100"), find_software("megatron_core"), 0);
    double gathers = 0;
    for (const collectives::CollectiveCalls& one : calls.calls)
      if (one.what == "values") gathers += sent_bytes(plain, one);
    EXPECT_DOUBLE_EQ(before - after, gathers * (1 - (1 + 1.0 / 32) / width));
  }
}

// Each micro-batch gathers once over dp and once among neighbours, in place of twice over dp.
TEST(PredictZeroPlusPlus, SecondaryShardsKeepTheGathersOfBackwardOnTheHost) {
  TrainingConfig plain = declared(gpt(3)), hpz = plain;
  hpz.model.untie_embeddings_and_output_weights = plain.model.untie_embeddings_and_output_weights =
      true;
  hpz.zero.options.plus_plus.hpz_partition_size = 8;
  const Prediction without = predicted(plain), with = predicted(hpz);
  const double gathers = bytes(without, "dp") - bytes(with, "dp");
  EXPECT_DOUBLE_EQ(gathers * (7.0 / 8) / (63.0 / 64), bytes(with, "hpz"));
  for (const GroupTime& one : with.groups) EXPECT_EQ(one.on_network, one.group == "dp");
  // Values of one eighth of the model more, in the dtype of the values.
  const double psi = configuration::parameters_of_rank(hpz.model, hpz.degrees, 1);
  EXPECT_NEAR((with.held.gpu.parameters - without.held.gpu.parameters) / (2 * psi / 8), 1, 1e-6);
}

// Wang et al. 2023, section 3.3: (h - 1)/h and then (d/h - 1)/d of the codes, 17/32 byte each.
TEST(PredictZeroPlusPlus, QuantizedGradientsSendTwoHops) {
  const int m = 3, d = 64, h = 8;
  TrainingConfig config = declared(gpt(3, m));
  config.zero.options.plus_plus.quantized_gradients = true;
  const Prediction p = predicted(config);
  const double elements = static_cast<double>(
      zero_calls(config, read_cluster("dgx_h100"), find_software("megatron_core"), 0)
          .declared.layout.elements);
  const double codes = elements * 17 / 32;
  EXPECT_DOUBLE_EQ(bytes(p, "qgz_near"), m * codes * (h - 1) / h);
  EXPECT_DOUBLE_EQ(bytes(p, "qgz_far"), m * codes * (1.0 * d / h - 1) / d);
}

// On a slow network less bytes are less time; nothing is lost to rounding between the two paths.
TEST(PredictZeroPlusPlus, EachOptionIsFasterOnASlowNetwork) {
  Cluster slow = read_cluster("dgx_h100");
  slow.network.bandwidth /= 64;
  const auto step_s = [&](zero::PlusPlusOptions options) {
    TrainingConfig config = declared(gpt(3));
    config.zero.options.plus_plus = options;
    return predict_step(config, slow, find_software("megatron_core")).step_s;
  };
  const double plain = step_s({}), hpz = step_s({8}), weights = step_s({1, true}),
               gradients = step_s({1, false, true}), all = step_s({8, true, true});
  EXPECT_LT(hpz, plain);
  EXPECT_LT(weights, plain);
  EXPECT_LT(gradients, plain);
  EXPECT_LT(all, std::min({hpz, weights, gradients}));
}

TEST(PredictZeroPlusPlus, OtherStagesHaveNone) {
  for (const int stage : {0, 1, 2}) {
    TrainingConfig config = gpt(stage);
    const Prediction before = predicted(config);
    config.zero.options.plus_plus = {8, true, true};
    EXPECT_EQ(predicted(config).step_s, before.step_s);
    EXPECT_EQ(bytes(predicted(config), "dp"), bytes(before, "dp"));
  }
}

// Declared messages and closed forms of the same step take the same time, but for padding.
TEST(PredictDataParallel, DeclaredMessagesTakeTheTimeOfTheClosedForms) {
  for (const Software& software : all_software())
    for (const int stage : {0, 1, 2}) {
      TrainingConfig config = gpt(stage);
      const Cluster cluster = read_cluster("dgx_a100");
      const Prediction closed = predict_step(config, cluster, software);
      config.frozen = "blocks.*.attention.*.bias";  // few parameters
      const Prediction declared = predict_step(config, cluster, software);
      EXPECT_NEAR(bytes(declared, "dp") / bytes(closed, "dp"), 1, 1e-3)
          << software.name << " " << stage;
      EXPECT_NEAR(declared.step_s / closed.step_s, 1, 2e-3) << software.name << " " << stage;
    }
}

// Rajbhandari et al. 2020, section 7.2.2: 3 Psi elements, because values are gathered twice in a
// micro-batch and gradients are reduced. A tied table is gathered for the embedding, for the head
// and for its backward, the positions once.
TEST(PredictDataParallel, Stage3GathersATiedTableForTheHead) {
  const TrainingConfig config = gpt(3, 2);
  Software software = find_software("megatron_core");
  software.gradient_bytes = 2;
  const Prediction p = predict_step(config, read_cluster("dgx_h100"), software);
  const double h = config.model.hidden, table = config.model.vocabulary * h,
               positions = config.model.sequence * h,
               layers = configuration::parameters_of_rank(config.model, config.degrees, 1) - table -
                        positions;
  EXPECT_NEAR(bytes(p, "dp") / (2 * 2 * (3 * layers + 4 * table + 2 * positions) * 63 / 64), 1,
              1e-3);
  Software again = software;
  again.gathers = 3;
  TrainingConfig full = config;
  full.activations.recompute_granularity = layers::RecomputeGranularity::full;
  EXPECT_NEAR((bytes(predict_step(full, read_cluster("dgx_h100"), again), "dp") - bytes(p, "dp")) /
                  (2 * 2 * layers * 63 / 64),
              1, 1e-3);
}

// One bit and a scale for each share, twice, in place of twice 4 bytes.
TEST(PredictDataParallel, OneBitOptimizersSendAThirtySecondAfterFreezing) {
  TrainingConfig config = gpt(0);
  const Prediction adam = predicted(config);
  config.optimizer.type = "one_bit_adam";
  const Prediction coded = predicted(config);
  EXPECT_NEAR(bytes(adam, "dp") / bytes(coded, "dp"), 32, 0.1);
  EXPECT_DOUBLE_EQ(coded.before_freeze_s, adam.step_s);
  EXPECT_EQ(adam.before_freeze_s, 0);
  for (const GroupTime& one : coded.groups) EXPECT_EQ(one.hidden_s, 0);  // it follows backward
}

TEST(PredictDataParallel, FrozenParametersHaveNoGradients) {
  TrainingConfig config = gpt(1);
  const Prediction all = predicted(config);
  config.frozen = "blocks.*";
  const Prediction ends = predicted(config);
  const Cluster cluster = read_cluster("dgx_h100");
  const Software& software = find_software("megatron_core");
  config.frozen.clear();
  const StageSeconds with = stage_seconds(config, cluster, software, 0);
  config.frozen = "blocks.*";
  const StageSeconds without = stage_seconds(config, cluster, software, 0);
  EXPECT_EQ(with.forward.gemm, without.forward.gemm);
  EXPECT_EQ(with.backward_input.gemm, without.backward_input.gemm);
  EXPECT_LT(without.backward_weights.gemm, with.backward_weights.gemm / 2);  // the head's
  EXPECT_LT(bytes(ends, "dp"), bytes(all, "dp") / 3);
  EXPECT_LT(ends.held.gpu.optimizer, all.held.gpu.optimizer / 3);
  EXPECT_LT(ends.optimizer_s, all.optimizer_s);
}

// A step of Newton-Schulz on [n, k] with n <= k has 2 n² k, 2 n³ and 2 n² k operations.
TEST(PredictMuon, OrthogonalizationHasTheOperationsOfItsProducts) {
  TrainingConfig config = gpt(0);
  config.optimizer.type = "muon";
  config.optimizer.muon.split_qkv = false;
  const ZeroCalls zero =
      zero_calls(config, read_cluster("dgx_h100"), find_software("megatron_core"), 0);
  const auto& muon = std::get<zero::Muon>(zero.options.rule);
  const double h = config.model.hidden;
  const auto of = [](double n, double k) { return 4 * n * n * k + 2 * n * n * n; };
  const double layer = of(h, 3 * h) + of(h, h) + 2 * of(h, 4 * h);
  EXPECT_DOUBLE_EQ(orthogonalization_flops(zero, muon, false), 2 * 5 * layer);
}

// The matrices of a rank are its share and one on each border. Every bucket has borders.
TEST(PredictMuon, ShardsOfLongBucketsDivideTheOrthogonalization) {
  const auto time = [](int stage, std::int64_t bucket) {
    TrainingConfig config = gpt(stage);
    config.model.layers = 64;
    config.optimizer.type = "muon";
    config.zero.reduce_bucket_size = bucket;
    return predicted(config).optimizer_s;
  };
  const double whole = time(0, 1'000'000'000'000), shards = time(1, 1'000'000'000'000);
  EXPECT_GT(whole / shards, 20);
  EXPECT_LT(whole / shards, 64);
  EXPECT_GT(time(1, 500'000'000), 5 * shards);
}

TEST(PredictUpdate, BytesFollowTheRule) {
  const auto bytes_of = [](const char* type, double momentum = 0) {
    TrainingConfig::Optimizer optimizer;
    optimizer.type = type;
    optimizer.momentum = momentum;
    return state_bytes(optimizer);
  };
  EXPECT_EQ(bytes_of("adamw"), 24);
  EXPECT_EQ(bytes_of("sgd"), 8);
  EXPECT_EQ(bytes_of("sgd", 0.9), 16);
  EXPECT_EQ(bytes_of("lion"), 16);
  EXPECT_GT(bytes_of("lamb"), bytes_of("adamw"));
  EXPECT_GT(bytes_of("adafactor"), bytes_of("adamw"));
}

// A quarter of the rate of float, half of that of bfloat16, and messages of one byte.
TEST(PredictFp8, HalveProductsAndGathers) {
  TrainingConfig config = gpt(1);
  config.degrees = {.tp = 8, .dp = 8};
  config.batch.global_batch_size = 24;
  config.activations.sequence_parallel = config.activations.use_flash_attn = true;
  const Prediction wide = predicted(config);
  config.fp8 = {.format = layers::Fp8Format::hybrid, .recipe = layers::Fp8Recipe::tensorwise};
  const Prediction narrow = predicted(config);
  EXPECT_LT(narrow.step_s, wide.step_s);
  EXPECT_GT(narrow.stage.gemm, wide.stage.gemm / 2);  // the head and the codes
  EXPECT_LT(bytes(narrow, "tp"), 0.8 * bytes(wide, "tp"));
  EXPECT_EQ(bytes(narrow, "dp"), bytes(wide, "dp"));
  Cluster faster = read_cluster("dgx_h100");
  faster.gpu.fp8 *= 2;
  EXPECT_LT(predict_step(config, faster, find_software("megatron_core")).step_s, narrow.step_s);
}

}  // namespace
}  // namespace suite::predict
