#pragma once
// The scales of each automaton of loss_scale.h after scripted steps, derived by hand from the
// tools' rules: 'o' is a step that overflows, 'c' a clean one. For tests and the unit loss_scaler.

#include <string>
#include <vector>

#include "zero/optimizers/loss_scale.h"

namespace zero {

struct LossScaleTrace {
  std::string what;
  LossScaleOptions options;
  std::string steps;
  std::vector<double> scales;  // one fewer than steps if the last one throws
};

inline std::vector<LossScaleTrace> loss_scale_traces() {
  using enum LossScaling;
  // initial scale, minimum, window, hysteresis
  return {
      // The window: three clean steps, or four and then three.
      {"window", {megatron, 8, 1, 3, 1}, "cccccccc", {8, 8, 16, 16, 16, 32, 32, 32}},
      {"window", {deepspeed_zero, 8, 1, 3, 1}, "cccccccc", {8, 8, 8, 16, 16, 16, 32, 32}},
      {"window", {deepspeed_fused, 8, 1, 3, 1}, "cccccccc", {8, 8, 8, 16, 16, 16, 32, 32}},
      {"window", {deepspeed_unfused, 8, 1, 3, 1}, "cccccccc", {8, 8, 8, 16, 16, 16, 32, 32}},
      {"window of one", {megatron, 1, 1, 1, 2}, "cccoc", {2, 4, 8, 8, 16}},
      {"window of one", {deepspeed_zero, 1, 1, 1, 2}, "cccoccc", {1, 2, 4, 4, 4, 8, 16}},
      {"window of one", {deepspeed_fused, 1, 1, 1, 2}, "cccoccc", {1, 2, 4, 2, 2, 4, 8}},

      // An overflow starts the count of clean steps again.
      {"count", {megatron, 64, 1, 3, 1}, "ccocccc", {64, 64, 32, 32, 32, 64, 64}},
      {"count", {deepspeed_zero, 64, 1, 3, 1}, "ccocccc", {64, 64, 32, 32, 32, 32, 64}},
      {"count", {deepspeed_unfused, 64, 1, 3, 1}, "ccocccc", {64, 64, 32, 32, 32, 32, 64}},
      // An overflow that hysteresis ignores also starts the count again.
      {"swallowed", {megatron, 64, 1, 3, 2}, "ccocccc", {64, 64, 64, 64, 64, 128, 128}},
      {"swallowed", {deepspeed_zero, 64, 1, 3, 2}, "ccocccc", {64, 64, 64, 64, 64, 64, 128}},

      // Used-up hysteresis is refilled when the scale doubles, not by a clean step.
      {"hysteresis",
       {megatron, 1024, 1, 4, 2},
       "ocooccccoo",
       {1024, 1024, 512, 256, 256, 256, 256, 512, 512, 256}},
      {"hysteresis",
       {deepspeed_zero, 1024, 1, 4, 2},
       "ocooccccoo",
       {1024, 1024, 512, 256, 256, 256, 256, 256, 128, 64}},
      {"refilled by doubling",
       {deepspeed_zero, 1024, 1, 2, 2},
       "oocccoo",
       {1024, 512, 512, 512, 1024, 1024, 512}},
      {"refilled by clean steps",
       {deepspeed_zero, 1024, 1, 4, 2, true},
       "ocooccccoo",
       {1024, 1024, 1024, 512, 512, 512, 512, 512, 512, 256}},
      {"hysteresis of three", {megatron, 64, 1, 9, 3}, "oooco", {64, 64, 32, 32, 16}},
      {"hysteresis of three", {deepspeed_zero, 64, 1, 9, 3}, "oooco", {64, 64, 32, 32, 16}},
      {"hysteresis ignored", {deepspeed_fused, 64, 1, 9, 3}, "ooco", {32, 16, 16, 8}},
      {"hysteresis ignored", {deepspeed_unfused, 64, 1, 9, 3}, "ooco", {32, 16, 16, 8}},

      // At the first step, with each tool's own options.
      {"first step", usual_options(megatron), "oo", {4294967296, 2147483648}},
      {"first step", usual_options(deepspeed_zero), "oo", {65536, 32768}},
      {"first step", usual_options(deepspeed_fused), "oo", {32768, 16384}},

      // At the minimum, which need not be half of the scale before it.
      {"minimum", {megatron, 4, 3, 2, 1}, "ooocc", {3, 3, 3, 3, 6}},
      {"minimum", {deepspeed_fused, 4, 3, 2, 1}, "oooccc", {3, 3, 3, 3, 3, 6}},
      {"minimum", {deepspeed_unfused, 4, 3, 2, 1}, "oooccc", {3, 3, 3, 3, 3, 6}},
      {"minimum", {deepspeed_zero, 4, 3, 2, 1}, "oo", {3}},
      // Throws when the scale would halve, not while hysteresis is left.
      {"minimum", {deepspeed_zero, 1, 1, 9, 3}, "ocoo", {1, 1, 1}},

      {"constant", {constant, 128, 1, 1, 1}, "ccooc", {128, 128, 128, 128, 128}},
  };
}

}  // namespace zero
