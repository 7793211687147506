#include "suite/configuration/automatic.h"

#include <fmt/format.h>

#include <cmath>

namespace suite::configuration {
namespace {

constexpr std::string_view arguments = "Hugging Face's TrainingArguments";

template <int Numerator, int Denominator = 1>
Filled number(const TrainingConfig&) {
  return {static_cast<double>(Numerator) / Denominator, std::string(arguments)};
}

// Of a width; without one there is nothing to say.
Filled of_width(const TrainingConfig& config, double value, std::string_view rule) {
  if (config.model.hidden > 0)
    return {std::floor(value), fmt::format("{}, as Hugging Face's Trainer has it", rule)};
  return {std::monostate{},
          fmt::format("it is {}, and no --hidden-size or --model is given", rule)};
}

double width(const TrainingConfig& config) { return config.model.hidden; }

constexpr Automatic rules[] = {
    {"optimizer.params.lr", number<5, 100'000>},
    {"optimizer.params.betas",
     [](const TrainingConfig&) -> Filled {
       return {std::vector<double>{0.9, 0.999}, std::string(arguments)};
     }},
    {"optimizer.params.eps", number<1, 100'000'000>},
    {"optimizer.params.weight_decay", number<0>},
    {"gradient_clipping", number<1>},
    {"scheduler.params.warmup_min_lr", number<0>},
    {"scheduler.params.warmup_max_lr",
     [](const TrainingConfig& config) -> Filled {
       return {config.optimizer.learning_rate, "the optimizer's learning rate"};
     }},
    {"scheduler.params.warmup_num_steps",
     [](const TrainingConfig& config) -> Filled {
       if (config.schedule.lr_warmup_iters)
         return {static_cast<double>(*config.schedule.lr_warmup_iters), "--lr-warmup-iters"};
       return number<0>(config);
     }},
    {"scheduler.params.total_num_steps",
     [](const TrainingConfig& config) -> Filled {
       if (config.schedule.train_iters)
         return {static_cast<double>(*config.schedule.train_iters), "--train-iters"};
       return {std::monostate{}, "it is the steps of the run, and no --train-iters is given"};
     }},
    {"zero_optimization.reduce_bucket_size",
     [](const TrainingConfig& c) {
       return of_width(c, width(c) * width(c), "hidden² of the model");
     }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     [](const TrainingConfig& c) {
       return of_width(c, 0.9 * width(c) * width(c), "0.9 hidden² of the model");
     }},
    {"zero_optimization.stage3_param_persistence_threshold",
     [](const TrainingConfig& c) { return of_width(c, 10 * width(c), "10 hidden of the model"); }},
    {"pipeline.stages",
     [](const TrainingConfig& c) -> Filled {
       return {static_cast<double>(c.degrees.pp), "--pipeline-model-parallel-size"};
     }},
};

}  // namespace

std::span<const Automatic> automatic_rules() { return rules; }

}  // namespace suite::configuration
