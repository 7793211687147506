#include "suite/configuration/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "suite/configuration/resolve.h"

namespace suite {
namespace {

TEST(LearningRate, MatchesDeepSpeed) {
  LearningRate rate{.style = "WarmupLR", .highest = 1, .lowest = 0.5, .warmup = 8};
  EXPECT_EQ(rate.after(0), 0.5);  // before the schedule begins
  EXPECT_EQ(rate.after(1), 0.5);
  EXPECT_DOUBLE_EQ(rate.after(2), 0.5 + 0.5 / 3);  // log 2 / log 8
  EXPECT_DOUBLE_EQ(rate.after(8), 1);
  EXPECT_EQ(rate.after(100), 1);
  rate.logarithmic_warmup = false;
  EXPECT_DOUBLE_EQ(rate.after(5), 0.75);
  rate.style = "WarmupDecayLR";
  rate.total = 16;
  EXPECT_DOUBLE_EQ(rate.after(9), 1);
  EXPECT_DOUBLE_EQ(rate.after(13), 0.75);
  EXPECT_EQ(rate.after(40), 0.5);
  rate = {.style = "WarmupCosineLR",
          .highest = 2,
          .warmup = 4,
          .total = 14,
          .logarithmic_warmup = false,
          .options = {.warmup_min_ratio = 0.5, .cos_min_ratio = 0.1}};
  EXPECT_EQ(rate.after(0), 0);
  EXPECT_DOUBLE_EQ(rate.after(3), 1.5);
  EXPECT_DOUBLE_EQ(rate.after(9), 2 * (0.1 + 0.9 * 0.5));  // five of ten
  EXPECT_DOUBLE_EQ(rate.after(30), 0.2);
}

TEST(LearningRate, MatchesMegatron) {
  LearningRate rate{.style = "linear", .highest = 1, .lowest = 0.2, .warmup = 4, .total = 12};
  EXPECT_EQ(rate.after(0), 0);
  EXPECT_DOUBLE_EQ(rate.after(1), 0.25);
  EXPECT_DOUBLE_EQ(rate.after(8), 0.6);
  EXPECT_EQ(rate.after(13), 0.2);
  rate.style = "cosine";
  EXPECT_DOUBLE_EQ(rate.after(8), 0.6);
  EXPECT_DOUBLE_EQ(rate.after(6), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  rate.style = "inverse-square-root";
  EXPECT_DOUBLE_EQ(rate.after(9), 2. / 3);
  rate.style = "megatron-constant";
  EXPECT_EQ(rate.after(2), 0.5);
  EXPECT_EQ(rate.after(99), 1);
  rate.style = "none";
  EXPECT_THROW(rate.after(0), std::invalid_argument);
}

// core/optimizer_param_scheduler.py: init_lr + (max_lr - init_lr) * steps / lr_warmup_steps.
TEST(LearningRate, WarmsUpFromMegatronsFirstRate) {
  const auto trained = [](const char* first) {
    return configuration::resolve(
               {.words = configuration::words_of("", std::string("--lr 1 "
                                                                 "--lr-warmup-iters 4 "
                                                                 "--lr-decay-iters 12 "
                                                                 "--lr-warmup-init ") +
                                                         first)})
        .config;
  };
  const TrainingConfig config = trained("0.2");
  EXPECT_NO_THROW(configuration::check_demands(config));
  const LearningRate rate = config.learning_rate();
  for (const auto& [step, want] : {std::pair(0, 0.2), {1, 0.4}, {4, 1.0}, {8, 0.5}, {12, 0.0}})
    EXPECT_DOUBLE_EQ(rate.after(step), want) << step;
  EXPECT_THROW(configuration::check_demands(trained("1.5")), std::invalid_argument);
}

}  // namespace
}  // namespace suite
