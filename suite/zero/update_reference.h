#pragma once
// One optimizer step from zero state in double, element by element, with a bound on how far the
// same step may be from it in the dtypes that are judged. Closed forms of the papers, from the
// gradients that all ranks contribute; shares no code with zero/ or the kernels.
//
// Notation of the derivations: u is the gradient dtype's unit roundoff plus that of double, as the
// reference rounds too; gamma_k bounds the product of k factors (1 + d)^(+-1), |d| <= u (Higham
// 2002, "Accuracy and Stability of Numerical Algorithms", Lemma 3.1). A hat marks what is computed.

#include <cstdint>
#include <functional>
#include <vector>

#include "machine/device/dtype.h"
#include "machine/device/kernels.h"
#include "suite/reference/bounded.h"

namespace suite {

struct Expected {
  std::vector<double> values, bounds;
};

struct UpdateCase {
  int ranks = 1;  // contributions to an element: those of a rank's micro-batches count one by one
  std::int64_t elements = 0;
  machine::Dtype value_dtype{}, gradient_dtype{};
  double divisor = 1, clip_norm = 1;
  machine::Dtype wire_dtype = gradient_dtype;  // narrower: contributions are rounded to it first
};

class UpdateReference {
 public:
  // contribution(rank, index): what a rank brings, exact in the gradient's dtype.
  UpdateReference(const UpdateCase& the_case,
                  const std::function<double(int rank, std::int64_t index)>& contribution);

  const Expected& gradients() const { return gradients_; }  // the sums, not divided
  double norm() const { return norm_; }                     // of the divided sums
  double norm_bound() const { return norm_bound_; }
  double clip_factor() const { return clip_factor_; }
  double clip_bound() const { return clip_factor_ * scale_error_; }

  // Values after one step. initial: exact in the value's dtype.
  Expected after_sgd(double learning_rate, const std::vector<double>& initial) const;
  Expected after_adamw(const machine::AdamW& options, const std::vector<double>& initial,
                       const std::vector<bool>& decays) const;

 private:
  Bounded scaled_gradient(std::size_t i) const;
  Expected rounded_to_values(const std::vector<Bounded>& masters) const;

  UpdateCase case_;
  double roundoff_;
  Expected gradients_;
  double norm_ = 0, norm_bound_ = 0, clip_factor_ = 1;
  double scale_error_ = 0;  // relative, of the scale that holds the clipping
};

}  // namespace suite
