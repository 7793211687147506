#include "suite/training_step/compressed/eight_bit_training.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "suite/configuration/models.h"
#include "suite/training_step/plain_reference.h"

namespace suite {
namespace {

TEST(EightBitTraining, RejectsUnsupportedOptions) {
  const auto why = [](const std::function<void(TrainingConfig&)>& change) {
    TrainingCase step{2, {}};
    set_model(step.config, "tiny");
    step.config.degrees.dp = 2;
    step.config.optimizer.type = "adamw_8bit";
    change(step.config);
    return why_no_step(step);
  };
  using machine::Dtype;
  EXPECT_EQ(why([](TrainingConfig&) {}), "");
  for (const auto& [change, words] :
       {std::pair<std::function<void(TrainingConfig&)>, const char*>(
            [](TrainingConfig& c) { c.precision.dtype = Dtype::float64; }, "(got double)"),
        {[](TrainingConfig& c) {
           c.zero.options.offload_optimizer.device = zero::OffloadDevice::cpu;
         },
         "cut blocks of codes"},
        {[](TrainingConfig& c) { c.zero.options.gradient_compression.algorithm = "half_wire"; },
         "(got adamw_8bit)"},
        {[](TrainingConfig& c) { c.model.moe.num_experts = 2; }, "decisions of routers"}})
    EXPECT_NE(why(change).find(words), std::string::npos) << why(change);
}

// A step after given moments does not depend on the step before it but by its values.
TEST(EightBitTraining, DrivenTrainingUsesTheGivenMoments) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.batch.global_batch_size = 2;
  config.optimizer.type = "adamw_8bit";
  const Corpus corpus = Corpus::generated(config.seed, config.model.tokens);
  const History plain = plain_history(config, corpus, {}, [] {});
  GradientSums sums(2);
  for (const auto& [name, parameter] : plain.parameters) {
    sums[0][name] = sums[1][name] = parameter.first_gradient;
    sums[1][name + "/first_moment"] = sums[1][name + "/second_moment"] =
        std::vector<double>(parameter.first_gradient.size(), 0.25);
  }
  const std::vector<DrivenStep> steps = driven_history(config, corpus, sums, [] {});
  const TrainingConfig::Optimizer& o = config.optimizer;
  const double factor = plain.gradient_factor;
  for (const auto& [name, parameter] : plain.parameters)
    for (std::size_t i = 0; i < parameter.first_gradient.size(); ++i) {
      const double g = factor * parameter.first_gradient[i],
                   m = o.betas[0] * 0.25 + (1 - o.betas[0]) * g,
                   v = o.betas[1] * 0.25 + (1 - o.betas[1]) * g * g;
      const double step = o.learning_rate * m / (1 - o.betas[0] * o.betas[0]) /
                          (std::sqrt(v / (1 - o.betas[1] * o.betas[1])) + o.epsilon);
      ASSERT_NEAR(steps[1].values.at(name)[i], steps[0].values.at(name)[i] - step, 1e-12) << name;
    }
}

}  // namespace
}  // namespace suite
