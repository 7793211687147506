#pragma once
// Loss scaling: the loss is multiplied by a scale so that half-precision gradients do not vanish,
// and gradients are divided by it again (Micikevicius et al. 2018, arXiv:1710.03740). A dynamic
// scale is halved after an overflow and doubled after steps without overflow. The step of an
// overflow is skipped. The tools have different rules. The four automata are:
//
//   megatron            Megatron-LM's DynamicGradScaler
//   deepspeed_zero      DeepSpeed's DynamicLossScaler, of its ZeRO optimizers
//   deepspeed_fused     DeepSpeed's FP16_Optimizer
//   deepspeed_unfused   DeepSpeed's FP16_UnfusedOptimizer
//
//                              megatron    deepspeed_zero        deepspeed_fused, _unfused
//   initial scale              2^32        2^16                  2^16
//   doubles after              each        window + 1 clean      as deepspeed_zero
//                              window of   steps, then each
//                              clean ones  window of them
//   overflows before it        hysteresis, hysteresis, then 1;   1: hysteresis is ignored
//   halves                     then 1      refilled at doubling,
//                              likewise    or, consecutive, by
//                                          every clean step
//   overflow at the minimum    stays       throws                stays
//
// Clean steps are counted since the last overflow, or since the first step. A scale is only a state
// machine, so ranks with the same inputs have the same scale.

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "collectives/communicator/communicator.h"

namespace zero {

enum class LossScaling : unsigned char {
  constant,
  megatron,
  deepspeed_zero,
  deepspeed_fused,
  deepspeed_unfused
};
inline constexpr std::initializer_list<LossScaling> all_loss_scalings = {
    LossScaling::constant, LossScaling::megatron, LossScaling::deepspeed_zero,
    LossScaling::deepspeed_fused, LossScaling::deepspeed_unfused};
std::string_view name(LossScaling scaling);
LossScaling find_loss_scaling(std::string_view wanted);  // std::invalid_argument names the nearest

struct LossScaleOptions {
  LossScaling scaling = LossScaling::megatron;
  double initial_scale = 4294967296;
  double min_scale = 1;
  std::int64_t window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;  // of deepspeed_zero only
};
// Returns the defaults of the tool that the automaton is named after; the constant scale is 1.
LossScaleOptions usual_options(LossScaling scaling);

// Gradients overflowed at the minimal scale.
class OverflowAtMinimum : public std::runtime_error {
 public:
  explicit OverflowAtMinimum(double scale);
};

class LossScale {
 public:
  // Throws std::invalid_argument for a scale that is not positive and finite, for an initial scale
  // below the minimum, and for a window or hysteresis below 1.
  explicit LossScale(const LossScaleOptions& options);

  double scale() const { return scale_; }
  // The mutable state, for checkpoints. restore throws std::invalid_argument for an impossible
  // state.
  struct State {
    double scale = 1;
    int patience = 1;
    std::int64_t clean = 0;
    bool operator==(const State&) const = default;
  };
  State state() const { return {scale_, patience_, clean_}; }
  void restore(const State& state);
  // Updates the scale after a step. overflow: gradients of any rank overflowed, and the step was
  // skipped. Throws OverflowAtMinimum and does not change the state.
  void update(bool overflow);

 private:
  bool is(LossScaling scaling) const { return options_.scaling == scaling; }

  LossScaleOptions options_;
  double scale_;
  int patience_;            // overflows until the scale halves, including the last one
  std::int64_t clean_ = 0;  // steps since the last overflow
};

// Returns whether the gradients of any rank of these groups have an infinity or a NaN. Collective.
// All ranks get the same result, so either all ranks skip the step or no rank does. The groups are
// combined one after the other; the grid's tp, pp and dp cover all its ranks. Null groups are
// ignored.
bool overflow_anywhere(const machine::Tensor& gradients,
                       const std::vector<collectives::Communicator*>& groups);

}  // namespace zero
