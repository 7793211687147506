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
      bias_(declare(context, name + ".bias", {out}, context.between_regions())) {}

void RowParallelLinear::forward(const Tensor& x, const Tensor& y) {
  const Tensor all = inside(context_, y);
  gemm(context_.stream(), matrix(x), matrix(weight_.value).transposed(), matrix(all));
  leave(context_, all, y);
  context_.kernels().add_bias(y, bias_.value, y);
}

Tensor RowParallelLinear::backward_input(const Tensor& d_y, const Tensor& d_x,
                                         machine::Category kept) {
  Tensor all = leave_backward(context_, d_y, kept);
  gemm(context_.stream(), matrix(all), matrix(weight_.value), matrix(d_x));
  return all;
}

void RowParallelLinear::backward_weights(const Tensor& x, const Tensor& all_d_y) {
  gemm(context_.stream(), matrix(all_d_y).transposed(), matrix(x), matrix(weight_.gradient), 1, 1);
  const std::int64_t own = context_.own_rows(all_d_y.rows());
  context_.kernels().accumulate_column_sums(all_d_y.row_range(context_.first_row(own), own),
                                            bias_.gradient);
}

void RowParallelLinear::initialize(const Initializer& initializer) {
  initializer.normal(context_, weight_, 0, initializer.residual_stddev);
  initializer.normal(context_, bias_, 0, initializer.bias_stddev);
}

}  // namespace layers
