#pragma once
// A block of GPT-2's shape (transformer_block.h) over a grid of ranks:
//
//   r = x + attention(norm1(x));   y = r + mlp(norm2(r))
//
// x, r and y are blocks [rows, columns] of [tokens, hidden], which are split as the input of a
// pair's first layer (tensor_grid.h), so residual sums and the first norm need no exchange of rows.
// Attention and perceptron are pairs of layers, whose products and biases communicate, as do the
// norms (Xu et al. 2021, arXiv:2104.05343, figure 6; Wang et al. 2021, arXiv:2105.14500; Bian et
// al. 2021, arXiv:2105.14450). grid_gpt_cost.h counts bytes and memory.

#include <string>

#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "layers/tensor_grids/grid_attention.h"
#include "layers/tensor_grids/grid_mlp.h"
#include "layers/tensor_grids/grid_norm.h"

namespace layers {

class GridTransformerBlock {
 public:
  // Kept from forward to backward_weights. backward_input adds the gradients of the outputs of the
  // norms.
  struct Saved {
    Tensor x, residual;  // x is the caller's
    GridNorm::Statistics statistics1, statistics2;
    GridAttention::Saved attention;
    GridMlp::Saved mlp;
    Tensor d_norm1, d_norm2;
  };

  // sequences: of a micro-batch.
  GridTransformerBlock(const GridContext& context, const std::string& name, const GptConfig& config,
                       int sequences);

  // Keeps views of x and d_y, which must stay unchanged until backward_weights. kept: the category
  // of memory for a later call, as of TransformerBlock.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  GridParameters parameters();  // those that this rank stores

 private:
  GridContext context_;
  GridNorm norm1_;
  GridAttention attention_;
  GridNorm norm2_;
  GridMlp mlp_;
};

// Returns the parameters of the lists that this rank stores, in their order.
GridParameters held(std::initializer_list<GridParameters> parts);

}  // namespace layers
