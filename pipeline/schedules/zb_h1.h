#pragma once
// ZB-H1: Qi et al. 2024, arXiv:2401.10241, with backward split into I and W. It warms up like 1F1B
// and does not keep more micro-batches alive. On stage i, W is i micro-batches late, the number for
// which 1F1B leaves room on this stage.
//
// With F = I = W and m >= p the bubble is (p-1)(F+I-W), a third of that of 1F1B. Every stage keeps
// min(p, m) micro-batches alive.

#include "pipeline/schedules/delayed_weights.h"

namespace pipeline {

constexpr StageSchedule zb_h1(int stage, const Size& size) {
  return delayed_weights(size.stages - stage - 1, stage, size.micro_batches);
}

constexpr int zb_h1_peak(int /*stage*/, const Size& size) {
  return std::min(size.stages, size.micro_batches);
}

constexpr Formula zb_h1_span(const Size& size, const Costs& costs) {
  if (!all_alike(costs)) return {.needs = "F = I = W"};
  if (size.micro_batches < size.stages) return {.needs = "m >= p"};
  return {size.micro_batches * (costs.forward + costs.backward()) +
          (size.stages - 1) * (costs.forward + costs.backward_input - costs.backward_weights)};
}

static_assert(zb_h1(0, {3, 4}) == parse("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"));
static_assert(zb_h1(1, {3, 4}) == parse("F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"));
static_assert(zb_h1(2, {3, 4}) == parse("F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"));
static_assert(peak_activations(zb_h1(0, {4, 8})) == 4 && peak_activations(zb_h1(3, {4, 8})) == 4);

}  // namespace pipeline
