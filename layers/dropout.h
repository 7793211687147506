#pragma once
// Dropout between the tensor-parallel regions (Srivastava et al. 2014, JMLR 15), in place or not:
//
//   out [tokens, hidden] = x / (1 - probability), or 0 where uniform(key, index) < probability
//
// The key depends on the draw's seed and the layer's name; index is the element's index among all
// tokens of the training. So the mask does not depend on tp, cp, sequence parallelism, the stages
// or the size of a micro-batch. No mask is kept: recomputation draws it again. Backward applies the
// same mask to the gradient. There is no communication.

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "layers/own_rows.h"
#include "layers/parameter.h"

namespace layers {

// The position of a micro-batch in the training, which keys its random numbers.
struct Draw {
  std::uint64_t seed = 0;
  std::int64_t first_token = 0;  // number of tokens before it, in all steps so far
};

struct Dropout {
  Context context;
  std::string name;
  double probability = 0;

  bool drops() const { return probability > 0; }
  // x and out: this rank's own rows of a micro-batch; out may be x. If the probability is 0, this
  // does nothing, and out must be x.
  void apply(const Draw& draw, const Tensor& x, const Tensor& out) const {
    if (!drops()) return;
    const std::uint64_t key = random_key(draw.seed, name);
    if (!context.cp.splits())
      return context.kernels().dropout(
          x, probability, key, {draw.first_token + context.first_row(x.rows()), 0, x.cols()}, out);
    const std::int64_t sequence = context.cp.placement.sequence;
    for (const RowRun& run : own_runs(context, sequence, x.rows())) {
      const std::int64_t token = draw.first_token + run.sequence * sequence + run.position;
      context.kernels().dropout(x.row_range(run.row, run.count), probability, key,
                                {0, token * x.cols(), run.step * x.cols()},
                                out.row_range(run.row, run.count));
    }
  }
};

}  // namespace layers
