#include "suite/configuration/keys.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "suite/configuration/resolve.h"
#include "suite/testing/file_case.h"

namespace suite::configuration {
namespace {

using suite::testing::expect_words;
using suite::testing::Folder;
using suite::testing::write_bytes;

TEST(Keys, HaveUniqueNamesAndAnEffect) {
  std::set<std::string_view> names;
  TrainingConfig usual;
  for (const Key& key : keys()) {
    EXPECT_FALSE(key.name().empty());
    for (const std::string_view name : {key.deepspeed, key.megatron})
      if (!name.empty()) {
        EXPECT_TRUE(names.insert(name).second) << name;
      }
    const bool has_field = key.effect == Effect::honoured || key.effect == Effect::planned;
    EXPECT_EQ(key.field != nullptr, has_field) << key.name();
    EXPECT_EQ(key.predicted.about.empty(), !has_field) << key.name();
    EXPECT_EQ(key.why.empty(), key.effect == Effect::honoured) << key.name();
    EXPECT_EQ(key.in_step != nullptr, key.effect == Effect::planned) << key.name();
    EXPECT_EQ(key.about.empty(), key.axis.empty()) << key.name();
    // A rejected section has no supported keys.
    EXPECT_FALSE(is_section(key.deepspeed)) << key.name();
    if (key.field && key.field(usual).kind() == Kind::word && !key.limits.choices.empty() &&
        key.axis != "model") {
      const std::string text = key.field(usual).text();
      EXPECT_TRUE(text == "none" ||
                  std::ranges::find(key.limits.choices, text) != key.limits.choices.end())
          << key.name() << " " << text;
    }
  }
  for (const Word& word : words()) {
    EXPECT_TRUE(find_key(word.to) || is_section(word.to)) << word.to;
    EXPECT_FALSE(find_key(&Key::deepspeed, word.from) || find_key(&Key::megatron, word.from))
        << word.from;
  }
}

TEST(Keys, AreFoundByEachOfTheirNames) {
  EXPECT_EQ(find_key("zero_optimization.stage"), find_key("--zero-stage"));
  EXPECT_EQ(find_key(&Key::axis, "zero-stage"), find_key("--zero-stage"));
  EXPECT_EQ(find_key(&Key::deepspeed, "zero-stage"), nullptr);
  EXPECT_EQ(find_key(""), nullptr);
}

TEST(Keys, DemandsRejectValuesButTheDefault) {
  const auto refusal = [](const TrainingConfig& config) -> std::string {
    try {
      check_demands(config);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "accepted";
  };
  TrainingConfig config;
  config.transport = machine::Transport::nccl;
  config.degrees.pp = 2;
  EXPECT_EQ(refusal(config), "accepted");
  config.pipeline.p2p_overlap = true;
  expect_words(refusal(config), {"overlap-p2p-communication on requires transport shared_memory",
                                 "over nccl messages move in groups"});
  config.degrees.pp = 1;
  EXPECT_EQ(refusal(config), "accepted") << "without effect";
}

// Every choice is read and printed, and every value that a key prints can be parsed again.
TEST(Keys, FieldsParseTheirOwnText) {
  TrainingConfig config, fresh;
  for (const Key& key : keys()) {
    if (!key.field) continue;
    const Field field = key.field(config);
    const std::string text = field.text();
    for (const std::string& choice : key.limits.choices) {
      field.set(choice);
      EXPECT_EQ(field.text(), choice) << key.name();
    }
    field.copy(key.field(fresh));
    EXPECT_EQ(field.text(), text) << key.name();
    if (text == "none" || field.kind() == Kind::pair) continue;
    field.set(value_of(field.kind(), text));
    EXPECT_EQ(field.text(), text) << key.name();
  }
}

// The class of bitsandbytes and the words of Hugging Face's --optim. DeepSpeed and Megatron-LM have
// no name for it.
TEST(Keys, EightBitAdamWHasTheNamesOfItsLibraries) {
  const Folder folder;
  const auto of_type = [&](const std::string& type) {
    const std::string path = folder.path("ds_config.json");
    write_bytes(path, R"({"train_batch_size": 2, "optimizer": {"type": ")" + type +
                          R"(", "params": {"lr": 2e-4, "betas": [0.8, 0.99], "eps": 1e-6,
                              "weight_decay": 0.1}}})");
    return resolve({.deepspeed_file = path, .gpus = 2}).config.optimizer;
  };
  for (const char* type : {"adamw_8bit", "AdamW8bit", "adamw_bnb_8bit"}) {
    const TrainingConfig::Optimizer optimizer = of_type(type);
    EXPECT_EQ(optimizer.min_8bit_size, 4096) << "bitsandbytes' default";
    const auto rule = std::get<zero::AdamW8Bit>(optimizer.rule());
    EXPECT_EQ(rule.learning_rate, 2e-4);
    EXPECT_EQ(rule.beta1, 0.8);
    EXPECT_EQ(rule.beta2, 0.99);
    EXPECT_EQ(rule.epsilon, 1e-6);
    EXPECT_EQ(rule.weight_decay, 0.1);
  }
  for (const char* type : {"Adam8bit", "lion_8bit", "paged_adamw_8bit"}) {
    try {
      of_type(type);
      ADD_FAILURE() << type << " is accepted";
    } catch (const harness::UsageError& error) {
      expect_words(error.what(), {type, "of the 8-bit optimizers AdamW is implemented"});
    }
  }
}

// DeepSpeed's 1-bit optimizers, with the keys of its tutorials.
TEST(Keys, OneBitOptimizersAreDeepSpeeds) {
  const Folder folder;
  const auto resolved = [&](const std::string& type, const std::string& params) {
    const std::string path = folder.path("ds_config.json");
    write_bytes(path, R"({"train_batch_size": 2, "optimizer": {"type": ")" + type +
                          R"(", "params": {"lr": 2e-4, "bias_correction": false, )" + params +
                          R"("cuda_aware": false, "comm_backend_name": "nccl"}}})");
    return resolve({.deepspeed_file = path, .gpus = 2});
  };
  const auto adam = std::get<zero::OneBitAdam>(
      resolved("OneBitAdam", R"("freeze_step": 400, )").config.optimizer.rule());
  EXPECT_EQ(adam.learning_rate, 2e-4);
  EXPECT_EQ(adam.freeze_step, 400);
  EXPECT_EQ(
      std::get<zero::OneBitAdam>(resolved("OneBitAdam", "").config.optimizer.rule()).freeze_step,
      100000);
  const Resolved of_lamb = resolved(
      "OneBitLamb", R"("freeze_step": 1000, "max_coeff": 0.3, "min_coeff": 0.01, "coeff_beta": 0.8,
                       "factor_max": 3.0, "factor_min": 0.4, "factor_threshold": 0.2, )");
  const auto lamb = std::get<zero::OneBitLamb>(of_lamb.config.optimizer.rule());
  EXPECT_EQ(lamb.freeze_step, 1000);
  EXPECT_EQ(lamb.min_coeff, 0.01);
  EXPECT_EQ(lamb.max_coeff, 0.3);
  EXPECT_EQ(lamb.coeff_beta, 0.8);
  EXPECT_EQ(lamb.factor_max, 3);
  EXPECT_EQ(lamb.factor_min, 0.4);
  EXPECT_EQ(lamb.factor_threshold, 0.2);
  std::string warnings;
  for (const std::string& warning : of_lamb.warnings) warnings += warning + "\n";
  expect_words(warnings, {"cuda_aware", "comm_backend_name", "transport"});
  EXPECT_THROW(resolved("AdamW", ""), harness::UsageError);  // it corrects the bias
}

// Muon's defaults differ between Megatron-LM and DeepSpeed.
class MuonKeys : public ::testing::Test {
 protected:
  Sources deepspeed(const std::string& params) {
    const std::string path = folder_.path("ds_config.json");
    write_bytes(path, R"({"train_batch_size": 1, "optimizer": {"type": "Muon", "params": {)" +
                          params + "}}}");
    return {.deepspeed_file = path, .gpus = 1};
  }
  Sources megatron(const std::string& arguments) {
    const std::string path = folder_.path("arguments.sh");
    write_bytes(path,
                "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 8 "
                "--vocab-size 64 --micro-batch-size 1 --global-batch-size 4 --optimizer muon " +
                    arguments);
    return {.megatron_file = path, .gpus = 1};
  }
  static zero::Muon muon(const Sources& sources) {
    return std::get<zero::Muon>(resolve(sources).config.optimizer.rule());
  }
  static std::string refusal(const Sources& sources) {
    try {
      resolve(sources);
    } catch (const harness::UsageError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  Folder folder_;
};

TEST_F(MuonKeys, DeepSpeedsIsJordans) {
  const Sources sources = deepspeed(R"("lr": 0.02, "betas": [0.8, 0.95], "weight_decay": 0.1)");
  const zero::Muon rule = muon(sources);
  EXPECT_EQ(rule.learning_rate, 0.02);
  EXPECT_EQ(rule.momentum, 0.95);
  EXPECT_TRUE(rule.nesterov);
  EXPECT_EQ(rule.beta2, 0.95);
  EXPECT_EQ(rule.weight_decay, 0.1);
  EXPECT_EQ(rule.num_ns_steps, 5);
  EXPECT_EQ(rule.coefficients, zero::NewtonSchulzType::simple);
  EXPECT_EQ(rule.scale, zero::MuonScale::shape_scaling);
  EXPECT_FALSE(resolve(sources).config.optimizer.muon.split_qkv);
  EXPECT_EQ(muon(deepspeed(R"("momentum": 0)")).momentum, 0);
  expect_words(refusal(deepspeed(R"("muon_lr": 0.01)")), {"muon_lr", "optimizer.params.lr"});
  EXPECT_EQ(refusal(deepspeed(R"("ns_method": "gram")")), "accepted");
}

TEST_F(MuonKeys, MegatronHasAnOptionForEach) {
  const zero::Muon usual = muon(megatron(""));
  EXPECT_EQ(usual.momentum, 0.9);
  EXPECT_FALSE(usual.nesterov);
  EXPECT_EQ(usual.weight_decay, 0.01);
  EXPECT_EQ(usual.coefficients, zero::NewtonSchulzType::quintic);
  EXPECT_EQ(usual.scale, zero::MuonScale::spectral);
  const Sources sources = megatron(
      "--muon-momentum 0.8 --muon-use-nesterov --muon-num-ns-steps 3 --muon-no-split-qkv "
      "--muon-coefficient-type simple --muon-scale-mode unit_rms_norm "
      "--muon-extra-scale-factor 0.2 --muon-tp-mode duplicated --muon-scalar-optimizer adam");
  const zero::Muon rule = muon(sources);
  EXPECT_EQ(rule.momentum, 0.8);
  EXPECT_TRUE(rule.nesterov);
  EXPECT_EQ(rule.num_ns_steps, 3);
  EXPECT_EQ(rule.coefficients, zero::NewtonSchulzType::simple);
  EXPECT_EQ(rule.scale, zero::MuonScale::unit_rms_norm);
  EXPECT_EQ(rule.extra_scale_factor, 0.2);
  EXPECT_FALSE(resolve(sources).config.optimizer.muon.split_qkv);
  EXPECT_TRUE(resolve(megatron("")).config.optimizer.muon.split_qkv);
}

TEST_F(MuonKeys, RefusesOtherRulesByName) {
  expect_words(refusal(megatron("--muon-tp-mode blockwise")), {"--muon-tp-mode", "whole matrices"});
  expect_words(refusal(megatron("--muon-scalar-optimizer lion")), {"--muon-scalar-optimizer"});
  expect_words(refusal(megatron("--muon-coefficient-type aol")), {"'aol'", "quintic"});
  expect_words(refusal(megatron("--muon-num-ns-steps 0")), {"--muon-num-ns-steps", "0"});
}

}  // namespace
}  // namespace suite::configuration
