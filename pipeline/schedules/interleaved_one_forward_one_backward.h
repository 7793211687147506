#pragma once
// Interleaved 1F1B: Narayanan et al. 2021, arXiv:2104.04473, section 2.2, in Megatron-LM's order. A
// stage holds v chunks of the model. Chunk c of stage i is part c * p + i. A stage runs p
// micro-batches through one chunk before it continues with the next chunk.
//
// An action takes 1/v of the time of a whole stage's action. So the bubble is also 1/v as long:
// (p-1)(F+B) of a chunk's F and B, which is (p-1)/(v m) of the ideal time. The schedule requires m
// % p == 0. Stage i runs 2(p-i-1) + (v-1)p forwards ahead of its first backward, so the first stage
// keeps vp + p-1 of a chunk's activations alive, (1 + (p-1)/(pv)) times those of 1F1B.

#include <algorithm>

#include "pipeline/schedule.h"

namespace pipeline {

// Returns number k of a stage's forwards or backwards.
constexpr Action interleaved_action(Kind kind, int k, const Size& size) {
  const int round = size.stages * size.chunks;  // p micro-batches through every chunk
  const int chunk = k % round / size.stages;
  return {kind, k / round * size.stages + k % size.stages,
          kind == Kind::forward ? chunk : size.chunks - 1 - chunk};
}

constexpr int interleaved_warm_up(int stage, const Size& size) {
  return std::min(2 * (size.stages - stage - 1) + (size.chunks - 1) * size.stages,
                  size.micro_batches * size.chunks);
}

constexpr StageSchedule interleaved_one_forward_one_backward(int stage, const Size& size) {
  const int warm_up = interleaved_warm_up(stage, size);
  const int all = size.micro_batches * size.chunks;
  StageSchedule actions;
  for (int k = 0; k < warm_up; ++k) actions.push_back(interleaved_action(Kind::forward, k, size));
  for (int k = 0; k < all; ++k) {
    if (warm_up + k < all) actions.push_back(interleaved_action(Kind::forward, warm_up + k, size));
    actions.push_back(interleaved_action(Kind::backward, k, size));
  }
  return actions;
}

constexpr std::string_view interleaved_one_forward_one_backward_needs(const Size& size) {
  return size.micro_batches % size.stages == 0 ? "" : "m % p == 0";
}

constexpr int interleaved_one_forward_one_backward_peak(int stage, const Size& size) {
  return std::min(interleaved_warm_up(stage, size) + 1, size.micro_batches * size.chunks);
}

constexpr Formula interleaved_one_forward_one_backward_span(const Size& size, const Costs& costs) {
  return {(size.micro_batches * size.chunks + size.stages - 1) *
          (costs.forward + costs.backward())};
}

static_assert(interleaved_one_forward_one_backward(0, {2, 4, 2}) ==
              parse("F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3"));
static_assert(interleaved_one_forward_one_backward(1, {2, 4, 2}) ==
              parse("F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3"));
static_assert(interleaved_one_forward_one_backward(0, {2, 2, 1}) == parse("F0 F1 B0 B1"));
static_assert(peak_activations(interleaved_one_forward_one_backward(0, {4, 8, 2})) == 2 * 4 + 3);

}  // namespace pipeline
