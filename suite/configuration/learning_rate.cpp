#include "suite/configuration/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace suite {
namespace {

double half_cosine(double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; }

// step: DeepSpeed's count, which is -1 for the first update.
double deepspeed(const LearningRate& rate, std::int64_t step) {
  const bool cosine = rate.style == "WarmupCosineLR";
  const std::int64_t warmup = std::max<std::int64_t>(2, rate.warmup);
  const auto at = static_cast<double>(step), steps = static_cast<double>(warmup);
  const double low = cosine ? rate.options.warmup_min_ratio * rate.highest : rate.lowest;
  if (step < 0) return cosine ? 0 : low;
  if (step < warmup)
    return low + (rate.highest - low) *
                     (rate.logarithmic_warmup ? std::log(at + 1) / std::log(steps) : at / steps);
  const auto left = static_cast<double>(std::max<std::int64_t>(1, rate.total - warmup));
  if (cosine) {
    const double floor = rate.options.cos_min_ratio;
    const double progress = std::min(1.0, (at - steps + 1) / left);
    return rate.highest * std::max(0.0, floor + (1 - floor) * half_cosine(progress));
  }
  if (rate.style == "WarmupLR") return rate.highest;
  const double decayed = std::max(0.0, static_cast<double>(rate.total - step) / left);
  return low + (rate.highest - low) * decayed;
}

double megatron(const LearningRate& rate, std::int64_t step) {
  const auto at = static_cast<double>(step), warmup = static_cast<double>(rate.warmup);
  const double first = rate.options.lr_warmup_init;
  if (rate.warmup > 0 && step <= rate.warmup) return first + (rate.highest - first) * at / warmup;
  if (rate.style == "megatron-constant") return rate.highest;
  if (step > rate.total) return rate.lowest;
  if (rate.style == "inverse-square-root")
    return std::max(rate.lowest,
                    rate.highest * std::sqrt(std::max(warmup, 1.0) / std::max(at, 1.0)));
  const double progress = (at - warmup) / (static_cast<double>(rate.total) - warmup);
  const double left = rate.style == "linear" ? 1 - progress : half_cosine(progress);
  return rate.lowest + left * (rate.highest - rate.lowest);
}

}  // namespace

double LearningRate::after(std::int64_t updates) const {
  if (style == "constant") return highest;
  if (style.starts_with("Warmup")) return deepspeed(*this, updates - 1);
  if (style == "linear" || style == "cosine" || style == "inverse-square-root" ||
      style == "megatron-constant")
    return megatron(*this, updates);
  throw std::invalid_argument(fmt::format("learning rate: no style '{}'", style));
}

}  // namespace suite
