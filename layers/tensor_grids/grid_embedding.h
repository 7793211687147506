#pragma once
// A token embedding over a grid of ranks: y [tokens, hidden] = the rows of a table [vocabulary,
// hidden]. It is the product of one-hot rows, which are not stored, and the table, as the second
// layer of a pair, so y is split as the input of a first layer.
//
//   1d         Megatron's vocabulary-parallel embedding: an all-reduce of y
//   2d, 2.5d   SUMMA with lookups (Xu et al. 2021, arXiv:2104.05343): the blocks of a column of the
//              grid are broadcast along it, one after the other, and the gradient of a block is
//              summed to its owner; 2.5d all-reduces it over the depth
//   3d         (Bian et al. 2021, arXiv:2105.14450) gathers the block of the table, and
//              reduce-scatters y
//
// A token is in one block, so y is exact in every mode.

#include <cstdint>
#include <string>

#include "layers/tensor_grids/grid_context.h"

namespace layers {

class GridEmbedding {
 public:
  // Throws std::invalid_argument unless the grid divides the sizes.
  GridEmbedding(const GridContext& context, const std::string& name, std::int64_t tokens,
                std::int64_t vocabulary, std::int64_t hidden);

  // tokens: int32 on the device, those of rows [first_token(), first_token() + token_count()).
  void forward(const std::int32_t* tokens, const machine::Tensor& y);
  void backward_weights(const std::int32_t* tokens, const machine::Tensor& d_y);

  GridParameters parameters() { return {&table_}; }
  GridParameter& table() { return table_; }
  GridBlock output() const { return output_; }
  std::int64_t first_token() const { return first_token_; }
  std::int64_t token_count() const { return token_count_; }

 private:
  TensorParallelMode mode() const { return context_.grid().mode; }
  collectives::Communicator* group(GridAxis axis) const { return context_.groups.find(axis); }
  machine::Tensor zeros(machine::Shape shape) const;  // accumulators

  GridContext context_;
  GridBlock output_;
  std::int64_t first_token_, token_count_;
  GridParameter table_;
};

}  // namespace layers
