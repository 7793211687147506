#pragma once
// 1F1B (PipeDream-Flush): Narayanan et al. 2020, arXiv:2006.09503. After a warm-up that fills the
// pipeline, a stage runs one forward and one backward in turn, then drains.
//
// The bubble is that of GPipe, (p-1)/m of the ideal time; the gain is memory: stage i keeps
// min(p-i, m) micro-batches alive instead of m.

#include <algorithm>

#include "pipeline/schedule.h"

namespace pipeline {

constexpr StageSchedule one_forward_one_backward(int stage, const Size& size) {
  const int warm_up = std::min(size.stages - stage - 1, size.micro_batches);
  const int steady = size.micro_batches - warm_up;

  StageSchedule actions;
  for (int m = 0; m < warm_up; ++m) actions.push_back(forward(m));
  for (int m = 0; m < steady; ++m) {
    actions.push_back(forward(warm_up + m));
    actions.push_back(backward(m));
  }
  for (int m = steady; m < size.micro_batches; ++m) actions.push_back(backward(m));
  return actions;
}

constexpr int one_forward_one_backward_peak(int stage, const Size& size) {
  return std::min(size.stages - stage, size.micro_batches);
}

constexpr Formula one_forward_one_backward_span(const Size& size, const Costs& costs) {
  return {(size.micro_batches + size.stages - 1) * (costs.forward + costs.backward())};
}

static_assert(one_forward_one_backward(0, {4, 4}) == parse("F0 F1 F2 F3 B0 B1 B2 B3"));
static_assert(one_forward_one_backward(1, {4, 4}) == parse("F0 F1 F2 B0 F3 B1 B2 B3"));
static_assert(one_forward_one_backward(2, {4, 4}) == parse("F0 F1 B0 F2 B1 F3 B2 B3"));
static_assert(one_forward_one_backward(3, {4, 4}) == parse("F0 B0 F1 B1 F2 B2 F3 B3"));
static_assert(one_forward_one_backward(0, {4, 2}) == parse("F0 F1 B0 B1"));
static_assert(peak_activations(one_forward_one_backward(0, {4, 8})) == 4);
static_assert(peak_activations(one_forward_one_backward(1, {4, 8})) == 3);
static_assert(peak_activations(one_forward_one_backward(2, {4, 8})) == 2);
static_assert(peak_activations(one_forward_one_backward(3, {4, 8})) == 1);

}  // namespace pipeline
