#pragma once
// DualPipe: DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.1. There are two copies of the model,
// so a stage holds two parts: chunk 0 is part i of the first copy, chunk 1 part p-1-i of the
// second. Half of the micro-batches enter at the first stage, the other half at the last, and meet.
// Requires even p, even m and m >= 2p. The gradients of the two copies must be added before the
// optimizer.
//
// The paper's bubble is (p/2-1)(F&B + B - 3W), where B is a whole backward, and F&B is a forward
// overlapped with a backward, as one block. Here a stage runs one after the other, and sends the
// forward's output before the backward begins. With F = I = W the bubble is (p/2-1)(F+I-W). The
// second factor is I less than the paper's with F&B = F+B. Every stage keeps p+1 micro-batches
// alive.

#include "pipeline/schedules/delayed_weights.h"

namespace pipeline {

constexpr StageSchedule dual_pipe(int stage, const Size& size) {
  // The two halves of the stages mirror each other. `near` is the copy that begins at this half's
  // end of the pipeline. `from_end` is the number of stages between this stage and that end.
  const int half = size.stages / 2;
  const int near = stage < half ? 0 : 1, far = 1 - near;
  const int from_end = near == 0 ? stage : size.stages - 1 - stage;
  const int to_middle = half - 1 - from_end;
  const int of_a_copy = size.micro_batches / 2;

  StageSchedule actions, late;  // late: pending W, first to last
  int forwards[2] = {}, backwards[2] = {};
  std::size_t done = 0;  // number of `late` that ran
  const auto add_forward = [&](int copy) {
    actions.push_back(forward(copy * of_a_copy + forwards[copy]++, copy));
  };
  const auto add_backward = [&](int copy) {
    actions.push_back(backward(copy * of_a_copy + backwards[copy]++, copy));
  };
  const auto add_input = [&](int copy) {
    const int micro_batch = copy * of_a_copy + backwards[copy]++;
    actions.push_back(backward_input(micro_batch, copy));
    late.push_back(backward_weights(micro_batch, copy));
  };
  const auto add_weights = [&] { actions.push_back(late[done++]); };

  for (int i = 0; i < 2 * to_middle; ++i) add_forward(near);
  for (int i = 0; i < from_end + 1; ++i) {
    add_forward(near);
    add_forward(far);
  }
  for (int i = 0; i < to_middle; ++i) {
    add_input(far);
    add_weights();
    add_forward(far);
  }
  // Alternates a forward of one copy and a backward of the other.
  for (int i = 0; i < of_a_copy - size.stages + from_end + 1; ++i) {
    add_forward(near);
    add_backward(far);
    add_forward(far);
    add_backward(near);
  }
  for (int i = 0; i < to_middle; ++i) {
    add_backward(far);
    add_forward(far);
    add_backward(near);
  }
  // The drain. After its middle W is delayed.
  for (int i = 0; i < 2 * (from_end + 1); ++i) {
    const int copy = i % 2 == 0 ? far : near;
    if (i < from_end + 1)
      add_backward(copy);
    else
      add_input(copy);
  }
  for (int i = 0; i < to_middle; ++i) {
    add_weights();
    add_input(near);
  }
  for (int i = 0; i < from_end + 1; ++i) add_weights();
  return actions;
}

constexpr std::string_view dual_pipe_needs(const Size& size) {
  if (size.stages % 2 != 0) return "p even";
  if (size.micro_batches % 2 != 0) return "m even, one half for each direction";
  return size.micro_batches >= 2 * size.stages ? "" : "m >= 2p";
}

constexpr int dual_pipe_peak(int /*stage*/, const Size& size) { return size.stages + 1; }

constexpr Formula dual_pipe_span(const Size& size, const Costs& costs) {
  if (!all_alike(costs)) return {.needs = "F = I = W"};
  const int others = size.stages / 2 - 1;
  return {size.micro_batches * (costs.forward + costs.backward()) +
          others * (costs.forward + costs.backward_input - costs.backward_weights)};
}

static_assert(dual_pipe(0, {2, 4, 2}) == parse("F0 F2.1 F1 B2.1 F3.1 B0 B3.1 I1 W1"));
static_assert(dual_pipe(1, {2, 4, 2}) == parse("F2.1 F0 F3.1 B0 F1 B2.1 B1 I3.1 W3.1"));
static_assert(dual_pipe(0, {4, 8, 2}) ==
              parse("F0 F1 F2 F4.1 I4.1 W4.1 F5.1 F3 B5.1 F6.1 B0 B6.1 F7.1 B1 B7.1 I2 W2 I3 W3"));
static_assert(peak_activations(dual_pipe(0, {8, 20, 2})) == 9 &&
              peak_activations(dual_pipe(3, {8, 20, 2})) == 9);

}  // namespace pipeline
