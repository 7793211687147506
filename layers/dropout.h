#pragma once
// Dropout between the tensor-parallel regions (Srivastava et al. 2014, JMLR 15), in place or not:
//
//   out [tokens, hidden] = x / (1 - probability), or 0 where uniform(key, index) < probability
//
// key: of the draw's seed and the layer's name. index: of the element among those of all tokens of
// the training. So a mask depends on neither tp, sequence parallelism, the stages nor the size of a
// micro-batch, nothing of it is kept, and recomputation draws it again. Backward is the same, of
// the gradient. Communication: none.

#include <cstdint>
#include <string>

#include "layers/context.h"

namespace layers {

// Where a micro-batch lies in the training: what it draws is keyed by that.
struct Draw {
  std::uint64_t seed = 0;
  std::int64_t first_token = 0;  // before it, in all steps so far
};

class Dropout {
 public:
  Dropout(const Context& context, std::string name, double probability);

  bool drops() const { return probability_ > 0; }
  // x and out: this rank's own rows of a micro-batch; out may be x.
  void apply(const Draw& draw, const machine::Tensor& x, const machine::Tensor& out) const;

 private:
  Context context_;
  std::string name_;
  double probability_;
};

}  // namespace layers
