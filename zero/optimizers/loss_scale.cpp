#include "zero/optimizers/loss_scale.h"

#include <fmt/format.h>

#include <cmath>

#include "machine/base/names.h"
#include "machine/device/kernels.h"

namespace zero {
namespace {

using Setter = void (*)(LossScaleOptions&, double);
struct Key {
  const char* name;
  Setter set;
  bool whole = false;  // takes whole numbers alone
};

void set_window(LossScaleOptions& options, double value) {
  options.window = static_cast<std::int64_t>(value);
}
void set_hysteresis(LossScaleOptions& options, double value) {
  options.hysteresis = static_cast<int>(value);
}
void set_initial(LossScaleOptions& options, double value) { options.initial_scale = value; }
void set_minimum(LossScaleOptions& options, double value) { options.min_scale = value; }

const std::vector<Key>& keys(LossScaling scaling) {
  static const std::vector<Key> constant = {{"--loss-scale", set_initial},
                                            {"loss_scale", set_initial}};
  static const std::vector<Key> megatron = {{"--initial-loss-scale", set_initial},
                                            {"--min-loss-scale", set_minimum},
                                            {"--loss-scale-window", set_window, true},
                                            {"--hysteresis", set_hysteresis, true}};
  static const std::vector<Key> deepspeed = {
      {"initial_scale_power",
       [](LossScaleOptions& o, double power) { o.initial_scale = std::exp2(power); }, true},
      {"loss_scale_window", set_window, true},
      {"hysteresis", set_hysteresis, true},
      {"consecutive_hysteresis",
       [](LossScaleOptions& o, double value) { o.consecutive_hysteresis = value != 0; }, true},
      {"min_loss_scale", set_minimum}};
  switch (scaling) {
    case LossScaling::constant:
      return constant;
    case LossScaling::megatron:
      return megatron;
    default:
      return deepspeed;
  }
}

}  // namespace

std::string_view name(LossScaling scaling) {
  switch (scaling) {
    case LossScaling::constant:
      return "constant";
    case LossScaling::megatron:
      return "megatron";
    case LossScaling::deepspeed_zero:
      return "deepspeed_zero";
    case LossScaling::deepspeed_fused:
      return "deepspeed_fused";
    case LossScaling::deepspeed_unfused:
      return "deepspeed_unfused";
  }
  return "?";
}

LossScaling find_loss_scaling(std::string_view wanted) {
  return machine::named("loss scaling", wanted, all_loss_scalings);
}

void set_option(LossScaleOptions& options, std::string_view key, double value) {
  std::vector<std::string> names;
  for (const Key& known : keys(options.scaling)) {
    names.emplace_back(known.name);
    if (known.name != key) continue;
    if (!std::isfinite(value) || (known.whole && value != std::floor(value)) ||
        std::abs(value) > 0x1p40)
      throw std::invalid_argument(fmt::format("{} {}: takes {} up to 2^40", key, value,
                                              known.whole ? "whole numbers" : "numbers"));
    LossScaleOptions changed = options;
    known.set(changed, value);
    options = changed;
    return;
  }
  throw std::invalid_argument(machine::unknown(
      fmt::format("option of the loss scaling {}", name(options.scaling)), key, names));
}

void LossScale::refuse(const LossScaleOptions& options) {
  throw std::invalid_argument(fmt::format(
      "loss scaling {}: initial scale {} and minimum {} must be positive, the minimum no larger, "
      "window {} and hysteresis {} at least 1",
      name(options.scaling), options.initial_scale, options.min_scale, options.window,
      options.hysteresis));
}

void LossScale::restore(const State& state) {
  const bool right = state.scale > 0 && state.scale < std::numeric_limits<double>::infinity() &&
                     state.patience >= 1 && state.patience <= options_.hysteresis &&
                     state.clean >= 0;
  if (!right)
    throw std::invalid_argument(fmt::format(
        "loss scaling {}: a scale of {}, {} overflows until it halves (of {}) and {} "
        "clean steps are no state of it",
        name(options_.scaling), state.scale, state.patience, options_.hysteresis, state.clean));
  scale_ = state.scale;
  patience_ = state.patience;
  clean_ = state.clean;
}

OverflowAtMinimum::OverflowAtMinimum(double scale)
    : std::runtime_error(fmt::format(
          "gradients overflow at the minimal loss scale {}: it cannot be made smaller", scale)) {}

// An infinity or a NaN stays one in every sum: the sum itself is the flag.
bool overflow_anywhere(const machine::Tensor& gradients,
                       const std::vector<collectives::Communicator*>& groups) {
  machine::Device& device = gradients.device();
  const machine::Tensor sum(device, machine::Dtype::float64, {1}, machine::Category::buffers);
  device.stream().kernels().sum(gradients, sum);
  for (collectives::Communicator* group : groups)
    if (group) group->all_reduce(sum);
  return !std::isfinite(to_doubles(sum)[0]);
}

}  // namespace zero
