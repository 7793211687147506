#include "layers/tensor_grids/grid_bias.h"

namespace layers {

using machine::Category, machine::Operation, machine::Reduction, machine::Tensor;

GridBias::GridBias(const GridContext& context, const std::string& name, PairPlace layer,
                   const GridSizes& sizes)
    : context_(context),
      layer_(layer),
      columns_(output_block(context.grid(), context.rank(), layer, sizes).cols),
      bias_{
          name, {1, sizes.out}, bias_block(context.grid(), context.rank(), layer, sizes), {}, {}} {}

GridAxis GridBias::axis() const {
  if (context_.grid().mode != TensorParallelMode::three_d) return GridAxis::column;
  return layer_ == PairPlace::first ? GridAxis::row : GridAxis::depth;
}

int GridBias::root() const {
  if (context_.grid().mode != TensorParallelMode::three_d) return 0;
  const GridPlace place = context_.groups.place();
  return layer_ == PairPlace::first ? place.k : place.j;
}

Tensor GridBias::whole() const {
  collectives::Communicator* const group = context_.groups.find(axis());
  if (!group) return bias_.value;
  const bool in_pieces = context_.grid().mode == TensorParallelMode::three_d;
  const Tensor part =
      bias_.held() ? bias_.value
                   : context_.tensor({1, in_pieces ? columns_ / context_.grid().rows : columns_},
                                     Category::buffers);
  group->run(Operation::broadcast, {}, part, part, Reduction::sum, root());
  if (!in_pieces) return part;
  const Tensor all = context_.tensor({1, columns_}, Category::buffers);
  context_.groups.find(GridAxis::column)->all_gather(part, all);
  return all;
}

void GridBias::add_to(const Tensor& y) const {
  context_.kernels().add_bias(y, whole().reshape({columns_}), y);
}

void GridBias::add_gradient(const Tensor& d_y) const {
  if (context_.grid().mode == TensorParallelMode::one_d || context_.grid().ranks() == 1)
    return context_.kernels().accumulate_column_sums(d_y, bias_.gradient.reshape({columns_}));
  Tensor sums(context_.device, context_.gradient_dtype(), {columns_}, Category::buffers);
  context_.kernels().fill(sums, 0);
  context_.kernels().accumulate_column_sums(d_y, sums);
  if (context_.grid().mode == TensorParallelMode::three_d) {
    const Tensor piece(context_.device, sums.dtype(), {columns_ / context_.grid().rows},
                       Category::buffers);
    context_.groups.find(GridAxis::column)->reduce_scatter(sums, piece);
    sums = piece;
  }
  if (collectives::Communicator* const group = context_.groups.find(axis()))
    group->run(Operation::reduce, {}, sums, sums, Reduction::sum, root());
  if (!bias_.held()) return;
  if (context_.grid().mode != TensorParallelMode::three_d)
    if (collectives::Communicator* const depth = context_.groups.find(GridAxis::depth))
      depth->all_reduce(sums);
  context_.kernels().accumulate(sums, bias_.gradient.reshape(sums.shape()));
}

}  // namespace layers
