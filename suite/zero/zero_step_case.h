#pragma once
// The cases of zero_step and zero_options. Axes have the names and units of DeepSpeed's
// configuration. The stage has the form of a Megatron flag, as in gpt_step.

#include <optional>
#include <string>

#include "suite/reference/unit.h"
#include "zero/stages/step.h"

namespace suite {

struct ZeroStepCase {
  static constexpr int whole = 500'000'000;  // one bucket for all elements

  int ranks = 2;
  Transport transport{};
  Dtype dtype{};
  int stage = 0;
  int parameters = 0;
  int micro_batches = 1;
  bool overlap = false, contiguous = true, reduce_scatter = true, prescale = false;
  bool all_gather = true;  // of updated values
  std::string predivide;   // gradient_predivide_factor
  int reduce_bucket = whole, all_gather_bucket = whole;
  std::string sums, wire;  // dtypes of gradients: added up in, sent in
  int prefetch_bucket = 0, persistence_threshold = 0, max_live = 0, max_reuse = 0;
  int hpz = 1;
  bool quantized_weights = false, quantized_gradients = false;
  std::string offload, offload_param, ratio, nvme_path;
  bool delayed = false;
  int sub_group_size = 0, buffer_count = 0, max_in_cpu = 0;

  bool offloads() const { return offload != "none" || offload_param != "none"; }
  // Returns the dtype of a word of `sums` or `wire`; "default": empty.
  static std::optional<Dtype> dtype_of(const std::string& word);
  // Returns the options without a rule and without a host.
  zero::StepOptions step_options(double clip_norm, int rank) const;
};

// The part of the unit zero_step that plans its cases.
struct ZeroStepCases {
  using Case = ZeroStepCase;
  // Returns the default options over both transports, and in small buckets: stages, ranks,
  // micro-batches, dtypes, overlap and places of the optimizer's states.
  static Sweep<Case> sweep();
  // Returns the reason why a case cannot run here, or empty.
  static std::string why_not(const Case& c, const Context& context);
};
// Returns the cases of all other options, one option at a time, in small buckets, with
// micro-batches and overlap.
Sweep<ZeroStepCase> zero_options_sweep();

}  // namespace suite
