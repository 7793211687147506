#pragma once
// ZB-V: Qi et al. 2024, arXiv:2405.15362 (and arXiv:2401.10241, section 6). A stage holds two
// chunks, and the model forms a V over the stages: chunk 0 goes down the stages, and chunk 1 goes
// back up. The first stage has the loss, so its first backward begins as soon as the first forward
// returns. So a zero bubble needs no more memory than 1F1B.
//
// With F = I = W (of a chunk) and m >= 2p-1 no stage is ever idle between its first and its last
// action. Every stage then keeps 2p of a chunk's activations alive, which are p of a whole stage's.

#include <algorithm>

#include "pipeline/schedules/delayed_weights.h"

namespace pipeline {

// The order is computed for at least 2p-1 micro-batches. Actions of micro-batches that do not exist
// are left out.
constexpr StageSchedule zb_v(int stage, const Size& size) {
  const int behind = size.stages - stage;  // stages from here to the turn
  const int laid_out = std::max(size.micro_batches, 2 * size.stages - 1);
  int next[2][3] = {};  // micro-batch, by chunk and kind
  StageSchedule actions;
  const auto add = [&](Kind kind, int chunk) {
    const int micro_batch = next[chunk][static_cast<int>(kind)]++;
    if (micro_batch < size.micro_batches) actions.push_back({kind, micro_batch, chunk});
  };
  const auto forward_and_backward = [&](int chunk) {
    add(Kind::forward, chunk);
    add(Kind::backward_input, chunk);
    add(Kind::backward_weights, chunk);
  };

  // Until the first micro-batch returns from the turn, then until it returns from the first stage.
  for (int i = 0; i < 2 * behind - 1; ++i) add(Kind::forward, 0);
  for (int i = 0; i < stage; ++i) {
    add(Kind::forward, 1);
    add(Kind::forward, 0);
  }
  for (int i = 0; i < behind; ++i) forward_and_backward(1);
  // One action of each kind in turn, while there are forwards.
  for (int i = size.stages; i < laid_out; ++i) {
    if (next[0][0] < laid_out) add(Kind::forward, 0);
    add(Kind::backward_input, 0);
    add(Kind::backward_weights, 0);
    forward_and_backward(1);
  }
  // The gradients for which other stages wait, then the delayed W.
  for (int i = 0; i < stage; ++i) {
    add(Kind::backward_input, 0);
    add(Kind::backward_input, 1);
  }
  for (int i = 0; i < behind; ++i) {
    add(Kind::backward_input, 0);
    add(Kind::backward_weights, 0);
  }
  for (int i = 0; i < stage; ++i) add(Kind::backward_weights, 1);
  for (int i = 0; i < stage; ++i) add(Kind::backward_weights, 0);
  return actions;
}

// With fewer than 2p-1 micro-batches, the peak counts the forwards before the first W.
constexpr int zb_v_peak(int stage, const Size& size) {
  return std::min(2 * size.stages - stage - 1, size.micro_batches) +
         std::min(stage + 1, size.micro_batches);
}

constexpr Formula zb_v_span(const Size& size, const Costs& costs) {
  if (!all_alike(costs)) return {.needs = "F = I = W"};
  if (size.micro_batches < 2 * size.stages - 1) return {.needs = "m >= 2p - 1"};
  return {2 * size.micro_batches * (costs.forward + costs.backward())};
}

static_assert(zb_v(0, {2, 3, 2}) ==
              parse("F0 F1 F2 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0 W0 F2.1 I2.1 W2.1 I1 W1 I2 W2"));
static_assert(zb_v(1, {2, 3, 2}) ==
              parse("F0 F0.1 F1 F1.1 I0.1 W0.1 F2 I0 W0 F2.1 I1.1 W1.1 I1 I2.1 I2 W1 W2.1 W2"));
static_assert(zb_v(1, {2, 1, 2}) == parse("F0 F0.1 I0.1 W0.1 I0 W0"));
static_assert(peak_activations(zb_v(0, {4, 8, 2})) == 8 &&
              peak_activations(zb_v(3, {4, 8, 2})) == 8);

}  // namespace pipeline
