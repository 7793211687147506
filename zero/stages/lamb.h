#pragma once
// LAMB (You et al. 2019, arXiv:1904.00962, Algorithm 2): Adam's direction and the decay of a
// parameter are its update u, and w -= learning_rate ratio u with ratio = |w| / |u|. The norms are
// those of the whole parameter (parameter_norms.h). The ratio is limited; it is 1 if a norm is 0.
//
// u takes the place of the gradient, so it needs no memory. Adam's direction of one piece of a
// parameter is in a scratch of the longest piece. The moments are corrected for their bias before
// the ratio, as in the paper. DeepSpeed's FusedLamb multiplies the learning rate by the corrections
// instead, so its first steps are shorter (0.3 of these with the usual betas).

#include "zero/offload/owned_optimizer.h"
#include "zero/optimizers/parameter_norms.h"
#include "zero/stages/step_context.h"

namespace zero {

// Throws std::invalid_argument for options that LAMB does not support.
void check_lamb(const StepOptions& options, Dtype value_dtype, Dtype gradient_dtype, int ep);
// Returns the bytes of buffers. LAMB needs no mask, because a parameter decays as a whole.
std::size_t lamb_buffers(const GradientPlan& plan, const Layout& layout, bool sharded);

double trust_ratio(const Lamb& limits, double norm, double norm_of_update);

class LambOptimizer final : public OwnedOptimizer {
 public:
  // context: must outlive this.
  LambOptimizer(const StepContext& context, const std::vector<OwnedRange>& owned);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void values_changed() override;
  void visit(bool writes, const Visit& call) override;

 private:
  struct Owned {
    Range range;
    RangeStates states;
    std::vector<std::size_t> pieces;  // of norms_
  };
  // Computes the moments, and replaces the gradient by -u.
  void direct(const Owned& owned, const ParameterNorms::Piece& piece, const Tensor& gradient,
              double gradient_scale);

  const StepContext& context_;
  std::vector<Owned> owned_;
  ParameterNorms norms_;
  Tensor scratch_;
};

}  // namespace zero
