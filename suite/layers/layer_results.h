#pragma once
// What a layer computed, in double: its results, its raw gradients, and the parameters after one
// step of SGD and one of AdamW on these. Judged part by part against the same layer on one rank, in
// the same dtype and in double.

#include <string>
#include <string_view>
#include <vector>

#include "suite/layers/layer_run.h"

namespace suite {

// A rank's part, or the whole.
struct LayerResults {
  struct OfParameter {
    std::vector<double> value, gradient, after_sgd, after_adamw;
  };
  std::vector<double> y, d_x;
  std::vector<OfParameter> parameters;  // in the layer's order
};

// Of the run's last passes. Gradients that are partial over tp are summed first, as placement says;
// the sums, and values after a step where ranks hold the same, are handed to judge.same_bits.
LayerResults results_of(const LayerRun& run, Judge* judge = nullptr);

// The layer on one rank.
struct LayerReference {
  LayerResults same, exact;  // in the dtype judged, and in double from the same values
};
// On this rank alone; `same` on the device that is judged and `exact` on the host. partial: whose
// earlier gradients are the sum of all ranks' parts. `same` adds to them itself, as the judged one
// does; to those of `exact` they are added afterwards, so that a layer that overwrites shows.
LayerReference make_reference(const Context& context, const LayerCase& c, const LayerTraits& traits,
                              MakeLayer make, const std::set<std::string>& partial);
std::string serialize(const LayerReference& reference);
LayerReference deserialize_layer_reference(std::string_view text);

// Bounds: norm_bound of harness/judge/numerics.h for one layer; what a step makes of such an error,
// and its own roundings, on top.
void judge_results(Judge& judge, const LayerRun& run, const LayerCase& c, const LayerTraits& traits,
                   std::int64_t longest_sum, const LayerResults& got,
                   const LayerReference& reference);

}  // namespace suite
