#pragma once
// The common order of the handcrafted zero-bubble schedules (Qi et al. 2024, arXiv:2401.10241).
// After a warm-up of forwards, a stage runs one forward and one backward_input in turn, and
// backward_weights `delay` micro-batches later. The gradient for the previous stage is sent first.
// The late halves fill the idle time after the last forward.

#include <algorithm>

#include "pipeline/schedule.h"

namespace pipeline {

constexpr StageSchedule delayed_weights(int warm_up, int delay, int micro_batches) {
  warm_up = std::min(warm_up, micro_batches);
  delay = std::min(delay, micro_batches);
  StageSchedule actions;
  for (int m = 0; m < warm_up; ++m) actions.push_back(forward(m));
  for (int m = 0; m < micro_batches; ++m) {
    if (warm_up + m < micro_batches) actions.push_back(forward(warm_up + m));
    actions.push_back(backward_input(m));
    if (m >= delay) actions.push_back(backward_weights(m - delay));
  }
  for (int m = micro_batches - delay; m < micro_batches; ++m)
    actions.push_back(backward_weights(m));
  return actions;
}

constexpr bool all_alike(const Costs& costs) {
  return costs.forward == costs.backward_input && costs.forward == costs.backward_weights;
}

static_assert(delayed_weights(1, 1, 3) == parse("F0 F1 I0 F2 I1 W0 I2 W1 W2"));
static_assert(delayed_weights(9, 9, 2) == parse("F0 F1 I0 I1 W0 W1"));

}  // namespace pipeline
