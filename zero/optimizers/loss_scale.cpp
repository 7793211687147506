#include "zero/optimizers/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "machine/base/names.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"

namespace zero {

std::string_view name(LossScaling scaling) {
  constexpr std::string_view names[] = {"constant", "megatron", "deepspeed_zero", "deepspeed_fused",
                                        "deepspeed_unfused"};
  return names[static_cast<std::size_t>(scaling)];
}

LossScaling find_loss_scaling(std::string_view wanted) {
  return machine::named("loss scaling", wanted, all_loss_scalings);
}

LossScaleOptions usual_options(LossScaling scaling) {
  LossScaleOptions options{.scaling = scaling};
  if (scaling == LossScaling::constant)
    options.initial_scale = 1;
  else if (scaling != LossScaling::megatron)
    options.initial_scale = 65536;
  return options;
}

LossScale::LossScale(const LossScaleOptions& options)
    : options_(options), scale_(options.initial_scale), patience_(options.hysteresis) {
  const bool right = options.min_scale > 0 && options.initial_scale > 0 &&
                     std::isfinite(options.initial_scale) && options.window >= 1 &&
                     options.hysteresis >= 1 &&
                     (is(LossScaling::constant) || options.min_scale <= options.initial_scale);
  if (!right)
    machine::reject(
        "loss scaling {}: initial scale is {}, minimum {}, window {}, hysteresis {}; expected "
        "positive scales, the minimum at most the initial scale, window and hysteresis 1 or more",
        name(options.scaling), options.initial_scale, options.min_scale, options.window,
        options.hysteresis);
}

void LossScale::update(bool overflow) {
  if (is(LossScaling::constant)) return;
  const bool megatron = is(LossScaling::megatron),
             stage_optimizer = is(LossScaling::deepspeed_zero);
  if (overflow) {
    const bool halves = !(megatron || stage_optimizer) || patience_ == 1;
    if (halves && stage_optimizer && scale_ == options_.min_scale) throw OverflowAtMinimum(scale_);
    if (halves)
      scale_ = std::max(scale_ / 2, options_.min_scale);
    else
      --patience_;
    clean_ = 0;
    return;
  }
  // DeepSpeed counts from the step after the first clean one.
  const std::int64_t counted = megatron ? clean_ + 1 : clean_;
  ++clean_;
  if (options_.consecutive_hysteresis && stage_optimizer) patience_ = options_.hysteresis;
  if (counted == 0 || counted % options_.window != 0) return;
  scale_ *= 2;
  patience_ = options_.hysteresis;
}

void LossScale::restore(const State& state) {
  const bool right = state.scale > 0 && std::isfinite(state.scale) && state.patience >= 1 &&
                     state.patience <= options_.hysteresis && state.clean >= 0;
  if (!right)
    machine::reject(
        "loss scaling {}: invalid state: scale {}, {} overflows until it halves (at most {}), {} "
        "clean steps",
        name(options_.scaling), state.scale, state.patience, options_.hysteresis, state.clean);
  scale_ = state.scale;
  patience_ = state.patience;
  clean_ = state.clean;
}

OverflowAtMinimum::OverflowAtMinimum(double scale)
    : std::runtime_error(fmt::format("gradients overflow at the minimal loss scale {}", scale)) {}

// A sum with an infinity or a NaN is not finite, so the sum itself is the flag.
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
