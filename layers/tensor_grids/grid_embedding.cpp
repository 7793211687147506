#include "layers/tensor_grids/grid_embedding.h"

#include "machine/base/reject.h"

namespace layers {

using machine::Category, machine::Operation, machine::Reduction, machine::Shape, machine::Tensor;

GridEmbedding::GridEmbedding(const GridContext& context, const std::string& name,
                             std::int64_t tokens, std::int64_t vocabulary, std::int64_t hidden)
    : context_(context),
      output_(output_block(context.grid(), context.rank(), PairPlace::second,
                           {tokens, vocabulary, hidden})),
      first_token_(output_.row),
      token_count_(output_.rows),
      table_(context.grid(), name + ".weight", {vocabulary, hidden},
             weight_block(context.grid(), context.rank(), PairPlace::second,
                          {tokens, vocabulary, hidden}),
             collectives::Role::weight) {
  const std::string why =
      why_not_divided(context.grid(), PairPlace::second, {tokens, vocabulary, hidden},
                      {"tokens", "vocab-size", "hidden-size"});
  if (!why.empty()) machine::reject("{}: {}", name, why);
  if (mode() == TensorParallelMode::three_d) {
    token_count_ = tokens / context.grid().rows;
    first_token_ = context.groups.place().i * token_count_;
  }
}

Tensor GridEmbedding::zeros(Shape shape) const {
  Tensor tensor(context_.device, context_.accumulator(), shape, Category::buffers);
  context_.kernels().fill(tensor, 0);
  return tensor;
}

void GridEmbedding::forward(const std::int32_t* tokens, const Tensor& y) {
  const auto look_up = [&](const Tensor& block, std::int64_t first_row, const Tensor& rows) {
    context_.kernels().embedding(tokens, block, first_row, rows);
  };
  if (mode() == TensorParallelMode::one_d) {
    look_up(table_.value, table_.block.row, y);
    if (collectives::Communicator* const row = group(GridAxis::row)) row->all_reduce(y);
    return;
  }
  collectives::Communicator* const column = group(GridAxis::column);
  if (!column) return look_up(table_.value, 0, y);
  const int n = column->size();
  if (mode() == TensorParallelMode::three_d) {
    const Tensor block =
        context_.tensor({n * table_.block.rows, table_.block.cols}, Category::buffers);
    column->all_gather(table_.value, block);
    const Tensor rows = context_.tensor({token_count_, output_.cols}, Category::buffers);
    look_up(block, context_.groups.place().k * block.rows(), rows);
    group(GridAxis::depth)->reduce_scatter(rows, y);
    return;
  }
  const Tensor received = context_.block_tensor(table_.block, Category::buffers),
               found = context_.tensor(y.shape(), Category::buffers);
  for (int root = 0; root < n; ++root) {
    const Tensor block = column->rank() == root ? table_.value : received;
    column->run(Operation::broadcast, {}, block, block, Reduction::sum, root);
    look_up(block, root * table_.block.rows, root == 0 ? y : found);
    if (root > 0) context_.kernels().add(y, found, y);
  }
}

void GridEmbedding::backward_weights(const std::int32_t* tokens, const Tensor& d_y) {
  const auto add_rows = [&](const Tensor& of_rows, std::int64_t first_row, const Tensor& sums) {
    context_.kernels().embedding_backward(tokens, of_rows, first_row, sums);
  };
  collectives::Communicator *const column = group(GridAxis::column), *const depth =
                                                                         group(GridAxis::depth);
  if (mode() == TensorParallelMode::one_d || (!column && !depth))
    return add_rows(d_y, table_.block.row, table_.gradient);
  const Shape own{table_.block.rows, table_.block.cols};
  const Tensor total = zeros(own);
  if (mode() == TensorParallelMode::three_d) {
    const Tensor all_d_y = context_.tensor({token_count_, output_.cols}, Category::buffers);
    depth->all_gather(d_y, all_d_y);
    const Tensor sums = zeros({column->size() * table_.block.rows, table_.block.cols});
    add_rows(all_d_y, context_.groups.place().k * sums.rows(), sums);
    column->reduce_scatter(sums, total);
  } else if (column) {
    const Tensor sums = zeros(own);
    for (int root = 0; root < column->size(); ++root) {
      if (root > 0) context_.kernels().fill(sums, 0);
      add_rows(d_y, root * table_.block.rows, sums);
      column->run(Operation::reduce, {}, sums, column->rank() == root ? total : sums,
                  Reduction::sum, root);
    }
  } else {
    add_rows(d_y, 0, total);
  }
  if (depth && mode() == TensorParallelMode::two_and_a_half_d) depth->all_reduce(total);
  context_.kernels().accumulate(total, table_.gradient);
}

}  // namespace layers
