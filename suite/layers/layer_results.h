#pragma once
// The results of a layer in double: its outputs, its raw gradients, and the parameters after one
// step of SGD and one of AdamW. They are compared part by part with the same layer on one rank, in
// the same dtype and in double.

#include <string>
#include <tuple>
#include <vector>

#include "suite/layers/layer_run.h"

namespace suite {

// A rank's part, or the whole.
struct LayerResults {
  struct OfParameter {
    std::vector<double> value, gradient, after_sgd, after_adamw;
    static auto members(auto& self) {
      return std::tie(self.value, self.gradient, self.after_sgd, self.after_adamw);
    }
  };
  std::vector<double> y, d_x;
  std::vector<OfParameter> parameters;  // in the layer's order
  static auto members(auto& self) { return std::tie(self.y, self.d_x, self.parameters); }
};

// The results of the run's last passes. Gradients that are partial over tp are summed first. The
// sums, and values after a step that ranks replicate, are passed to judge.same_bits.
LayerResults results_of(const LayerRun& run, Judge* judge = nullptr);

// The layer on one rank.
struct LayerReference {
  LayerResults same, exact;  // in the dtype judged, and in double from the same values
  static auto members(auto& self) { return std::tie(self.same, self.exact); }
};
// Runs on this rank only; `same` on the judged device and `exact` on the host. partial: parameters
// whose earlier gradients are the sum of all ranks' parts. `same` adds to them itself, as the
// judged layer does; they are added to `exact` afterwards, so that a layer that overwrites shows.
LayerReference make_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                              MakeLayer make, const std::set<std::string>& partial);

// Bounds: norm_bound of harness/judge/numerics.h for one layer, the effect of such an error on a
// step, and the step's own roundings.
void judge_results(Judge& judge, const LayerRun& run, const LayerCase& c, const LayerTraits& traits,
                   std::int64_t longest_sum, const LayerResults& got,
                   const LayerReference& reference);

}  // namespace suite
