#include "suite/configuration/training_config.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "collectives/placement.h"

namespace suite {

zero::Rule TrainingConfig::Optimizer::rule() const {
  if (type == "sgd") {
    if (momentum > 0 || weight_decay > 0)
      return zero::Momentum{learning_rate, momentum, weight_decay};
    return zero::Sgd{learning_rate};
  }
  if (type == "rmsprop") return zero::RmsProp{learning_rate, smoothing, epsilon, weight_decay};
  if (type == "lion") return zero::Lion{learning_rate, betas[0], betas[1], weight_decay};
  if (type == "lamb")
    return zero::Lamb{learning_rate, betas[0],  betas[1], epsilon,
                      weight_decay,  min_coeff, max_coeff};
  if (type == "adafactor")
    return zero::Adafactor{learning_rate, decay_rate, clip_threshold, weight_decay};
  if (type == "adamw_8bit")
    return zero::AdamW8Bit{learning_rate, betas[0], betas[1], epsilon, weight_decay};
  if (type == "one_bit_adam")
    return zero::OneBitAdam{learning_rate, betas[0], betas[1], epsilon, weight_decay, freeze_step};
  if (type == "one_bit_lamb")
    return zero::OneBitLamb{learning_rate, betas[0],    betas[1],   epsilon,
                            weight_decay,  freeze_step, min_coeff,  max_coeff,
                            coeff_beta,    factor_min,  factor_max, factor_threshold};
  if (type == "muon") {
    using enum zero::MuonScale;
    return zero::Muon{.learning_rate = learning_rate,
                      .momentum = momentum,
                      .nesterov = muon.nesterov,
                      .beta1 = betas[0],
                      .beta2 = betas[1],
                      .epsilon = epsilon,
                      .weight_decay = weight_decay,
                      .num_ns_steps = muon.num_ns_steps,
                      .coefficients = muon.coefficient_type == "simple"
                                          ? zero::NewtonSchulzType::simple
                                          : zero::NewtonSchulzType::quintic,
                      .scale = muon.scale_mode == "unit_rms_norm"   ? unit_rms_norm
                               : muon.scale_mode == "shape_scaling" ? shape_scaling
                                                                    : spectral,
                      .extra_scale_factor = muon.extra_scale_factor};
  }
  if (!decoupled_decay) return zero::Adam{learning_rate, betas[0], betas[1], epsilon, weight_decay};
  return zero::AdamW{learning_rate, betas[0], betas[1], epsilon, weight_decay};
}

bool TrainingConfig::Schedule::is_megatrons() const {
  return type.empty() && (train_iters || lr_decay_iters || lr_warmup_iters);
}

LearningRate TrainingConfig::learning_rate() const {
  LearningRate rate{.highest = optimizer.learning_rate, .options = schedule.options};
  if (!schedule.type.empty()) {
    rate.style = schedule.type;
    if (schedule.type != "WarmupCosineLR") rate.highest = schedule.warmup_max_lr;
    rate.lowest = schedule.warmup_min_lr;
    rate.warmup = schedule.warmup_num_steps;
    rate.total = schedule.total_num_steps.value_or(0);
    rate.logarithmic_warmup = schedule.warmup_type == "log";
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

namespace {

std::optional<machine::Dtype> dtype_of(std::string_view deepspeed) {
  using enum machine::Dtype;
  if (deepspeed.empty()) return {};
  return deepspeed == "fp16" ? float16 : deepspeed == "bf16" ? bfloat16 : float32;
}

}  // namespace

// Values in double, as those of a reference, have gradients in double.
machine::Dtype TrainingConfig::gradient_dtype() const {
  const machine::Dtype wide = collectives::gradient_dtype(precision.dtype);
  const std::optional<machine::Dtype> asked = dtype_of(zero.grad_accum_dtype);
  return asked == precision.dtype ? precision.dtype : wide;
}

void TrainingConfig::check_gradient_dtypes() const {
  const std::optional<machine::Dtype> sums = dtype_of(zero.grad_accum_dtype);
  if (precision.dtype == machine::Dtype::float64) {
    for (const auto& [name, value] :
         {std::pair("data_types.grad_accum_dtype", zero.grad_accum_dtype),
          {"communication_data_type", zero.communication_data_type}})
      if (!value.empty())
        throw std::invalid_argument(
            fmt::format("{} is {}; gradients of double values are double", name, value));
  } else if (sums && *sums != precision.dtype && *sums != machine::Dtype::float32) {
    throw std::invalid_argument(fmt::format(
        "data_types.grad_accum_dtype is {}; expected fp32 or the dtype of the values ({})",
        zero.grad_accum_dtype, machine::name(precision.dtype)));
  }
}

std::vector<std::string> TrainingConfig::frozen_patterns() const {
  std::vector<std::string> patterns;
  std::istringstream text(frozen);
  for (std::string pattern; std::getline(text, pattern, '+');) patterns.push_back(pattern);
  return patterns;
}

std::vector<std::string> TrainingConfig::frozen_names(const std::vector<std::string>& names) const {
  const std::vector<std::string> patterns = frozen_patterns();
  std::vector<std::string> matched;
  for (const std::string& name : names)
    if (std::ranges::any_of(patterns, [&](const std::string& pattern) {
          return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
        }))
      matched.push_back(name);
  return matched;
}

zero::StepOptions TrainingConfig::step_options() const {
  zero::StepOptions options = zero.options;
  if (precision.dtype != machine::Dtype::float64)
    options.communication_data_type = dtype_of(zero.communication_data_type);
  options.rule = optimizer.rule();
  options.clip_norm =
      optimizer.clipping > 0 ? optimizer.clipping : std::numeric_limits<double>::infinity();
  options.overlap_comm = zero.overlaps();
  options.offload_optimizer.nvme.swap = {.folder = zero.optimizer_path, .io = zero.aio};
  options.offload_param.swap = {.folder = zero.parameter_path, .io = zero.aio};
  return options;
}

}  // namespace suite
