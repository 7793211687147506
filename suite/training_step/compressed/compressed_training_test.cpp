#include "suite/training_step/compressed/compressed_training.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "suite/configuration/models.h"
#include "suite/training_step/plain_reference.h"

namespace suite {
namespace {

TEST(CompressedTraining, RejectsUnsupportedOptions) {
  const auto why = [](const std::function<void(TrainingConfig&)>& change) {
    TrainingCase step{2, {}};
    set_model(step.config, "tiny");
    step.config.degrees.dp = 2;
    step.config.zero.options.gradient_compression.algorithm = "top_k";
    change(step.config);
    return why_no_step(step);
  };
  EXPECT_EQ(why([](TrainingConfig&) {}), "");
  EXPECT_NE(why([](TrainingConfig& config) { config.zero.stage = 2; }).find("stage 0 or 1 (got 2)"),
            std::string::npos);
  EXPECT_NE(why([](TrainingConfig& config) {
              config.precision.dtype = machine::Dtype::float16;
            }).find("(got half)"),
            std::string::npos);
  EXPECT_EQ(why([](TrainingConfig& config) { config.transport = machine::Transport::nccl; }), "");
  TrainingCase alone{1, {}};
  set_model(alone.config, "tiny");
  alone.config.zero.options.gradient_compression.algorithm = "top_k";
  EXPECT_NE(why_no_step(alone).find("2 or more (got 1)"), std::string::npos);
  EXPECT_NE(why([](TrainingConfig& config) { config.zero.overlap_comm = true; }).find("overlap"),
            std::string::npos);
}

// With the gradients that it computes itself, the driven training is the plain training.
TEST(CompressedTraining, DrivenTrainingUsesTheGivenSums) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.batch.global_batch_size = 2;
  const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
  const History plain = plain_history(config, corpus, {}, [] {});
  GradientSums sums(1);
  for (const auto& [name, parameter] : plain.parameters) sums[0][name] = parameter.first_gradient;
  const std::vector<DrivenStep> same = driven_history(config, corpus, sums, [] {});
  for (const auto& [name, parameter] : plain.parameters) {
    EXPECT_EQ(same[0].gradients.at(name), parameter.first_gradient) << name;
    EXPECT_EQ(same[0].values.at(name), parameter.after_one) << name;
  }
  EXPECT_EQ(same[0].loss, plain.losses[0]);
  EXPECT_EQ(same[0].gradient_norm, plain.gradient_norm);
  for (double& value : sums[0].at("head.norm.gain")) value = -value;
  const std::vector<DrivenStep> other = driven_history(config, corpus, sums, [] {});
  EXPECT_EQ(other[0].gradients, same[0].gradients);
  EXPECT_NE(other[0].values.at("head.norm.gain"), same[0].values.at("head.norm.gain"));
}

}  // namespace
}  // namespace suite
