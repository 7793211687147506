#include "layers/row_parallel_linear.h"

#include "layers/region.h"
#include "machine/device/gemm.h"

namespace layers {

using collectives::Spread;
using machine::gemm;
using machine::matrix;
using machine::Tensor;

RowParallelLinear::RowParallelLinear(const Context& context, const std::string& name,
                                     std::int64_t in, std::int64_t out)
    : context_(context),
      weight_(declare(context, name + ".weight", {out, in}, {.tp = Spread::sharded, .dim = 1})),
      bias_(declare(context, name + ".bias", {out}, {})) {}

void RowParallelLinear::forward(const Tensor& x, const Tensor& y) {
  gemm(context_.stream(), matrix(x), matrix(weight_.value).transposed(), matrix(y));
  ReduceFrom::forward(context_.tp, y);
  context_.kernels().add_bias(y, bias_.value, y);
}

void RowParallelLinear::backward_input(const Tensor& d_y, const Tensor& d_x) {
  ReduceFrom::backward(context_.tp, d_y);
  gemm(context_.stream(), matrix(d_y), matrix(weight_.value), matrix(d_x));
}

void RowParallelLinear::backward_weights(const Tensor& x, const Tensor& d_y) {
  gemm(context_.stream(), matrix(d_y).transposed(), matrix(x), matrix(weight_.gradient), 1, 1);
  context_.kernels().accumulate_column_sums(d_y, bias_.gradient);
}

void RowParallelLinear::initialize(const Initializer& initializer) {
  initializer.normal(context_, weight_, 0, initializer.residual_stddev);
  initializer.normal(context_, bias_, 0, initializer.bias_stddev);
}

}  // namespace layers
