#pragma once
// ZB-H2: Qi et al. 2024, arXiv:2401.10241. Forwards fill the time until the first backward, and W
// is 2 i micro-batches late on stage i. So each stage computes without a pause, and the stages end
// as they began, one after the other. No stage is idle if each stage begins the next step as soon
// as it ends this one, without a barrier over all stages.
//
// With F = I = W and m >= 2p-1 the bubble is (p-1)(F+I-2W), which is 0. Every stage keeps min(2p-1,
// m) micro-batches alive; 1F1B keeps min(p, m) on its first stage.

#include "pipeline/schedules/delayed_weights.h"

namespace pipeline {

constexpr StageSchedule zb_h2(int stage, const Size& size) {
  return delayed_weights(2 * (size.stages - stage - 1), 2 * stage, size.micro_batches);
}

constexpr int zb_h2_peak(int /*stage*/, const Size& size) {
  return std::min(2 * size.stages - 1, size.micro_batches);
}

constexpr Formula zb_h2_span(const Size& size, const Costs& costs) {
  if (!all_alike(costs)) return {.needs = "F = I = W"};
  if (size.micro_batches < 2 * size.stages - 1) return {.needs = "m >= 2p - 1"};
  return {size.micro_batches * (costs.forward + costs.backward()) +
          (size.stages - 1) * (costs.forward + costs.backward_input - 2 * costs.backward_weights)};
}

static_assert(zb_h2(0, {3, 6}) == parse("F0 F1 F2 F3 F4 I0 W0 F5 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5"));
static_assert(zb_h2(1, {3, 6}) == parse("F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5"));
static_assert(zb_h2(2, {3, 6}) == parse("F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5"));
static_assert(peak_activations(zb_h2(0, {4, 8})) == 7 && peak_activations(zb_h2(3, {4, 8})) == 7);

}  // namespace pipeline
