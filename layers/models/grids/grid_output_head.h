#pragma once
// The end of a GPT (output_head.h) over a grid of ranks: final norm, output layer with the token
// table or an untied weight, and cross-entropy on blocks of the logits.
//
//   logits = norm(x) tableᵀ
//   loss = sum over the rank's rows of log(sum exp(logit - max)) - (logit[target] - max)
//
// The table [vocabulary, hidden] is the weight of a pair's second layer, as in grid_embedding.h,
// and the output layer is that layer in reverse: forward is its product for the gradient of the
// input, backward_input its forward. So logits are split as the input of a second layer: over the
// rows of the micro-batch, and their columns, the vocabulary, over the row of the grid (2d, 2.5d)
// or its depth (3d). That group all-reduces the maximum, the target's logit and the sum of exp of
// each row (Shoeybi et al. 2019, arXiv:1909.08053, section 3; Xu et al. 2021, arXiv:2104.05343,
// section 3.2). Its ranks have the same loss; ranks of other rows have other tokens.

#include <cstdint>

#include "layers/gpt_config.h"
#include "layers/parameter.h"
#include "layers/tensor_grids/grid_matmul.h"
#include "layers/tensor_grids/grid_norm.h"

namespace layers {

// Returns the axis of the grid whose ranks split the vocabulary.
GridAxis vocabulary_axis(const TensorGrid& grid);
// Returns the block of a matrix [vocabulary, hidden] that a rank stores.
GridBlock table_block(const GridContext& context, const GptConfig& config);

class GridOutputHead {
 public:
  // Kept from forward to backward_weights. backward_input replaces logits by their gradient, frees
  // max and sum_exp and adds d_norm.
  struct Saved {
    Tensor x, norm, logits, max, sum_exp;  // x is the caller's
    GridNorm::Statistics statistics;
    const std::int32_t* targets = nullptr;
    Tensor d_norm;
  };

  // The caller owns the table, a block of table_block.
  GridOutputHead(const GridContext& context, GridParameter& table, const GptConfig& config,
                 int sequences);

  void set_vocabulary(std::int64_t vocabulary) { vocabulary_ = vocabulary; }

  // Overwrites loss, one double on the device. targets: of the whole micro-batch, as for
  // OutputHead.
  void forward(const Tensor& x, const std::int32_t* targets, const Tensor& loss, Saved& saved);
  void backward_input(double factor, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  GridParameters parameters();  // those that this rank stores; the table is the last

 private:
  GridContext context_;
  GridParameter& table_;
  std::int64_t vocabulary_;
  GridBlock logits_;
  GridNorm norm_;
  GridMatmul matmul_;
};

}  // namespace layers
