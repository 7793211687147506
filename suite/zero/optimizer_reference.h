#pragma once
// Steps of an optimizer in double, element by element, each number with a bound on how far the same
// arithmetic in a narrower dtype may be from it: running error analysis (Higham 2002, "Accuracy and
// Stability of Numerical Algorithms", section 3.3). Formulas of the papers (machine/device/
// kernels.h); shares no code with zero/ or the kernels.

#include <vector>

#include "machine/device/dtype.h"
#include "suite/reference/bounded.h"
#include "zero/optimizers/optimizer.h"

namespace suite {

// Every operation adds its inputs' errors and a rounding of its own.
class OptimizerReference {
 public:
  // initial: exact. roundoff: of the dtype that the judged side computes in.
  OptimizerReference(const zero::Rule& rule, const std::vector<double>& initial,
                     const std::vector<std::uint8_t>& decays, double roundoff);

  // gradients: exact in that dtype.
  void step(const std::vector<double>& gradients, double gradient_scale);

  const std::vector<Bounded>& masters() const { return masters_; }
  const std::vector<Bounded>& first() const { return first_; }
  const std::vector<Bounded>& second() const { return second_; }

 private:
  zero::Rule rule_;
  std::vector<Bounded> masters_, first_, second_;
  std::vector<std::uint8_t> decays_;
  double roundoff_;
  int steps_ = 0;
};

}  // namespace suite
