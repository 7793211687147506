#pragma once
// The learning rate of each step, by the names of users' configurations: a pure function of the
// updates made so far. A skipped step does not count, as in both tools.
//
//   constant                              the optimizer's own
//   WarmupLR, WarmupDecayLR,              DeepSpeed's (runtime/lr_schedules.py); its first update
//   WarmupCosineLR                        is made before the schedule begins, at the lowest rate
//   linear, cosine, inverse-square-root   Megatron-LM's --lr-decay-style, after --lr-warmup-iters
//                                         (core/optimizer_param_scheduler.py)
//   megatron-constant                     constant after --lr-warmup-iters

#include <cstdint>
#include <string>

namespace suite {

// The options of a schedule that it takes from the keys as they are.
struct LearningRateOptions {
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;  // WarmupCosineLR's, of the highest rate
  double lr_warmup_init = 0;                          // Megatron-LM's first rate
};

struct LearningRate {
  std::string style = "constant";
  double highest = 1e-3, lowest = 0;
  std::int64_t warmup = 0, total = 0;  // updates; total: until the decay has ended
  bool logarithmic_warmup = true;      // DeepSpeed's "log", else "linear"
  LearningRateOptions options{};

  // Returns the rate of the update after `updates`. Throws std::invalid_argument for an unknown
  // style.
  double after(std::int64_t updates) const;
};

}  // namespace suite
