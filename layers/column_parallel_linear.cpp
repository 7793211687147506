#include "layers/column_parallel_linear.h"

#include "layers/region.h"
#include "machine/device/gemm.h"

namespace layers {

using collectives::Spread;
using machine::gemm;
using machine::matrix;
using machine::Tensor;

ColumnParallelLinear::ColumnParallelLinear(const Context& context, const std::string& name,
                                           std::int64_t in, std::int64_t out)
    : context_(context),
      weight_(declare(context, name + ".weight", {out, in}, {.tp = Spread::sharded, .dim = 0})),
      bias_(declare(context, name + ".bias", {out}, {.tp = Spread::sharded, .dim = 0})) {}

void ColumnParallelLinear::forward(const Tensor& x, const Tensor& y) {
  const Tensor all = enter(context_, x);
  gemm(context_.stream(), matrix(all), matrix(weight_.value).transposed(), matrix(y));
  context_.kernels().add_bias(y, bias_.value, y);
}

void ColumnParallelLinear::backward_input(const Tensor& d_y, const Tensor& d_x) {
  const Tensor d_all = inside(context_, d_x);
  gemm(context_.stream(), matrix(d_y), matrix(weight_.value), matrix(d_all));
  enter_backward(context_, d_all, d_x);
}

void ColumnParallelLinear::backward_weights(const Tensor& x, const Tensor& d_y) {
  const Tensor all = enter(context_, x);
  gemm(context_.stream(), matrix(d_y).transposed(), matrix(all), matrix(weight_.gradient), 1, 1);
  context_.kernels().accumulate_column_sums(d_y, bias_.gradient);
}

void ColumnParallelLinear::initialize(const Initializer& initializer) {
  initializer.normal(context_, weight_, 0, initializer.weight_stddev);
  initializer.normal(context_, bias_, 0, initializer.bias_stddev);
}

}  // namespace layers
