#pragma once
// Delayed scaling (Transformer Engine's DelayedScaling; Micikevicius et al. 2022,
// arXiv:2209.05433, section 4): a pass encodes with the scales that the passes before chose, and
// records the largest magnitudes of its own tensors. At its end these are shared over the ranks of
// a group, enter the histories, and give the next scales.
//
//   scale = largest of the format / amax / 2^margin
//   amax  = the last one, or the largest of the last amax_history_len
//
// Scales start at 1. An amax of 0, or one that is not finite, keeps the scale. Transformer Engine
// joins the amaxes of all layers in one message at the end of a pass. Here each layer sends its own
// at its end; scales are the same, because no layer reads them before the next pass.

#include <memory>
#include <vector>

#include "layers/fp8/quantizer.h"

namespace layers {

class DelayedScaling {
 public:
  // The tensors of a pass, in a fixed order, by their formats.
  DelayedScaling(machine::Device& device, const Fp8Options& options,
                 collectives::Communicator& amax_group, std::vector<machine::Dtype> float8);

  // Returns the quantizer of one of the tensors; it refers to this object.
  std::unique_ptr<Quantizer> quantizer(std::size_t tensor);
  // Ends a pass. Collective over the group.
  void update();

 private:
  friend class DelayedQuantizer;
  void start();

  machine::Device& device_;
  Fp8Options options_;
  collectives::Communicator& amax_group_;
  std::vector<machine::Dtype> float8_;
  machine::Tensor recorded_;         // float [tensors]: amaxes of this pass
  machine::Tensor history_;          // float [tensors, amax_history_len], a ring
  machine::Tensor scale_, inverse_;  // float [tensors]
  std::int64_t passes_ = 0;
};

}  // namespace layers
