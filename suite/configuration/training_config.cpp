#include "suite/configuration/training_config.h"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>

namespace suite {

zero::Rule TrainingConfig::Optimizer::rule() const {
  if (type == "sgd") {
    if (momentum > 0 || weight_decay > 0)
      return zero::Momentum{learning_rate, momentum, weight_decay};
    return zero::Sgd{learning_rate};
  }
  if (type == "rmsprop") return zero::RmsProp{learning_rate, smoothing, epsilon, weight_decay};
  if (!decoupled_decay) return zero::Adam{learning_rate, betas[0], betas[1], epsilon, weight_decay};
  return zero::AdamW{learning_rate, betas[0], betas[1], epsilon, weight_decay};
}

bool TrainingConfig::Schedule::is_megatrons() const {
  return type.empty() && (train_iters || lr_decay_iters || lr_warmup_iters);
}

LearningRate TrainingConfig::learning_rate() const {
  LearningRate rate{.highest = optimizer.learning_rate};
  if (!schedule.type.empty()) {
    rate.style = schedule.type;
    if (schedule.type != "WarmupCosineLR") rate.highest = schedule.warmup_max_lr;
    rate.lowest = schedule.warmup_min_lr;
    rate.warmup = schedule.warmup_num_steps;
    rate.total = schedule.total_num_steps.value_or(0);
    rate.logarithmic_warmup = schedule.warmup_type == "log";
    rate.warmup_min_ratio = schedule.warmup_min_ratio;
    rate.cosine_min_ratio = schedule.cos_min_ratio;
  } else if (schedule.is_megatrons()) {
    rate.style =
        schedule.lr_decay_style == "constant" ? "megatron-constant" : schedule.lr_decay_style;
    rate.lowest = schedule.min_lr;
    rate.warmup = schedule.lr_warmup_iters.value_or(0);
    rate.total =
        schedule.lr_decay_iters ? *schedule.lr_decay_iters : schedule.train_iters.value_or(0);
    if (rate.total <= rate.warmup && rate.style != "megatron-constant")
      throw std::invalid_argument(fmt::format(
          "--lr-decay-iters {} is not above --lr-warmup-iters {}", rate.total, rate.warmup));
  }
  return rate;
}

zero::StepOptions TrainingConfig::step_options() const {
  zero::StepOptions options = zero.options;
  options.rule = optimizer.rule();
  options.clip_norm =
      optimizer.clipping > 0 ? optimizer.clipping : std::numeric_limits<double>::infinity();
  options.overlap_comm = zero.overlaps();
  options.offload_optimizer.nvme.swap = {.folder = zero.optimizer_path, .io = zero.aio};
  options.offload_param.swap = {.folder = zero.parameter_path, .io = zero.aio};
  return options;
}

}  // namespace suite
