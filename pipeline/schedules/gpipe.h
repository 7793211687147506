#pragma once
// GPipe: Huang et al. 2019, arXiv:1811.06965. All forwards, then all backwards.
//
// The backwards run in the order of the forwards, as Narayanan et al. 2021 (arXiv:2104.04473,
// figure 3) draw it; the original's figure runs them in reverse, which takes the same time and
// memory. With parallelism over micro-batches of equal cost, m micro-batches on p stages leave a
// bubble of (p-1)(F+B): (p-1)/m of the ideal time m(F+B), which is (p-1)/(m+p-1) of the total.
// Every stage keeps all m micro-batches alive.

#include "pipeline/schedule.h"

namespace pipeline {

constexpr StageSchedule gpipe(int /*stage*/, const Size& size) {
  StageSchedule actions;
  for (int m = 0; m < size.micro_batches; ++m) actions.push_back(forward(m));
  for (int m = 0; m < size.micro_batches; ++m) actions.push_back(backward(m));
  return actions;
}

constexpr int gpipe_peak(int /*stage*/, const Size& size) { return size.micro_batches; }

constexpr Formula gpipe_span(const Size& size, const Costs& costs) {
  return {(size.micro_batches + size.stages - 1) * (costs.forward + costs.backward())};
}

static_assert(gpipe(0, {4, 4}) == parse("F0 F1 F2 F3 B0 B1 B2 B3"));
static_assert(gpipe(1, {4, 4}) == parse("F0 F1 F2 F3 B0 B1 B2 B3"));
static_assert(gpipe(2, {4, 4}) == parse("F0 F1 F2 F3 B0 B1 B2 B3"));
static_assert(gpipe(3, {4, 4}) == parse("F0 F1 F2 F3 B0 B1 B2 B3"));
static_assert(peak_activations(gpipe(0, {4, 8})) == 8);
static_assert(peak_activations(gpipe(3, {4, 8})) == 8);

}  // namespace pipeline
