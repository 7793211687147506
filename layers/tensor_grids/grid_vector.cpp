#include "layers/tensor_grids/grid_vector.h"

namespace layers {

using machine::Category, machine::Operation, machine::Reduction, machine::Tensor;

GridVector::GridVector(const GridContext& context, const std::string& name, PairPlace layer,
                       const GridSizes& sizes, collectives::Role role)
    : context_(context),
      layer_(layer),
      columns_(output_block(context.grid(), context.rank(), layer, sizes).cols),
      vector_(context.grid(), name, {1, sizes.out},
              bias_block(context.grid(), context.rank(), layer, sizes), role) {}

GridAxis GridVector::axis() const {
  if (!in_pieces()) return GridAxis::column;
  return layer_ == PairPlace::first ? GridAxis::row : GridAxis::depth;
}

int GridVector::root() const {
  if (!in_pieces()) return 0;
  const GridPlace place = context_.groups.place();
  return layer_ == PairPlace::first ? place.k : place.j;
}

Tensor GridVector::whole() const {
  collectives::Communicator* const group = context_.groups.find(axis());
  if (!group) return vector_.value.reshape({columns_});
  const std::int64_t stored = in_pieces() ? columns_ / context_.grid().rows : columns_;
  const Tensor part = vector_.held() ? vector_.value.reshape({stored})
                                     : context_.tensor({stored}, Category::buffers);
  group->run(Operation::broadcast, {}, part, part, Reduction::sum, root());
  if (!in_pieces()) return part;
  const Tensor all = context_.tensor({columns_}, Category::buffers);
  context_.groups.find(GridAxis::column)->all_gather(part, all);
  return all;
}

Tensor GridVector::gradient_sums() const {
  if (!communicates()) return vector_.gradient.reshape({columns_});
  Tensor sums(context_.device, context_.accumulator(), {columns_}, Category::buffers);
  context_.kernels().fill(sums, 0);
  return sums;
}

void GridVector::add_gradient(const Tensor& sums) const {
  if (!communicates()) return;
  Tensor part = sums;
  if (in_pieces()) {
    part =
        Tensor(context_.device, sums.dtype(), {columns_ / context_.grid().rows}, Category::buffers);
    context_.groups.find(GridAxis::column)->reduce_scatter(sums, part);
  }
  if (collectives::Communicator* const group = context_.groups.find(axis()))
    group->run(Operation::reduce, {}, part, part, Reduction::sum, root());
  if (!vector_.held()) return;
  if (!in_pieces())
    if (collectives::Communicator* const depth = context_.groups.find(GridAxis::depth))
      depth->all_reduce(part);
  context_.kernels().accumulate(part, vector_.gradient.reshape(part.shape()));
}

}  // namespace layers
