#include "layers/tensor_grids/grid_linear.h"

#include "machine/base/reject.h"

namespace layers {

using machine::Category, machine::Tensor;

GridLinear::GridLinear(const GridContext& context, const std::string& name, const GridSizes& sizes,
                       const GridLinearOptions& options)
    : context_(context),
      options_(options),
      input_(input_block(context.grid(), context.rank(), options.layer, sizes)),
      output_(output_block(context.grid(), context.rank(), options.layer, sizes)),
      matmul_(context, options.layer),
      weight_(context.grid(), name + ".weight", {sizes.in, sizes.out},
              weight_block(context.grid(), context.rank(), options.layer, sizes), options.role,
              StoredAs::transposed),
      bias_(context, name + ".bias", options.layer, sizes) {
  const std::string why = why_not_divided(context.grid(), options.layer, sizes);
  if (!why.empty()) machine::reject("{}: {}", name, why);
}

void GridLinear::forward(const Tensor& x, const Tensor& y) {
  {
    GridOperands operands{.left = x, .right = weight_.value, .result = y};
    matmul_.run(GridProduct::ab, operands);
  }
  if (options_.bias) context_.kernels().add_bias(y, bias_.whole(), y);
}

Tensor GridLinear::backward_input(const Tensor& d_y, const Tensor& d_x, Category kept) {
  GridOperands operands{.left = d_y, .right = weight_.value, .result = d_x, .kept_left = kept};
  matmul_.run(GridProduct::abt, operands);
  return operands.whole_left ? operands.whole_left : d_y;
}

void GridLinear::backward_weights(const Tensor& x, const Tensor& all_d_y) {
  Tensor own = all_d_y;
  if (context_.grid().mode == TensorParallelMode::three_d) {
    const GridPlace place = context_.groups.place();
    const int index = options_.layer == PairPlace::first ? place.j : place.k;
    own = all_d_y.row_range(index * output_.rows, output_.rows);
  }
  {
    GridOperands operands{
        .left = x, .right = own, .result = weight_.gradient, .adds = true, .whole_right = all_d_y};
    matmul_.run(GridProduct::atb, operands);
  }
  if (!options_.bias) return;
  const Tensor sums = bias_.gradient_sums();
  context_.kernels().accumulate_column_sums(own, sums);
  bias_.add_gradient(sums);
}

GridParameters GridLinear::parameters() {
  return options_.bias ? GridParameters{&weight_, &bias_.parameter()} : GridParameters{&weight_};
}

}  // namespace layers
