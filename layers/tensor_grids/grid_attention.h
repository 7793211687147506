#pragma once
// Self-attention over a grid of ranks: queries, keys and values by the first layer of a pair, the
// output by the second.
//
// A rank's block between the two has whole sequences and whole heads, so attention needs no
// communication: the columns of the QKV weight are stored head by head, (q, k, v) of head 0, then
// of head 1, …, and the rows of a block are those of whole sequences (Xu et al. 2021,
// arXiv:2104.05343; Wang et al. 2021, arXiv:2105.14500; Bian et al. 2021,
// arXiv:2105.14450). Attention is blockwise (machine/device/flash_attention.h) and causal.

#include <string>

#include "layers/tensor_grids/grid_linear.h"
#include "machine/device/flash_attention.h"

namespace layers {

struct GridAttentionSizes {
  std::int64_t sequences = 1, sequence = 1, hidden = 1, heads = 1;
  std::int64_t tokens() const { return sequences * sequence; }
};
// Returns why the grid cannot split the sizes, or empty. Sizes of linear layers are included.
std::string why_not_divided(const TensorGrid& grid, const GridAttentionSizes& sizes);

class GridAttention {
 public:
  // Kept from forward to backward_weights. backward_input frees qkv and log_sum_exp and adds d_qkv.
  struct Saved {
    machine::Tensor x, qkv, log_sum_exp, attended;  // x is the caller's
    machine::Tensor all_d_y, all_d_qkv;             // 3d: the rows of the group that scatters them
  };

  // Throws std::invalid_argument unless the grid divides the sizes.
  GridAttention(const GridContext& context, const std::string& name,
                const GridAttentionSizes& sizes);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  GridParameters parameters();
  GridBlock input() const { return qkv_.input(); }
  GridBlock output() const { return projection_.output(); }

 private:
  // Returns the heads of this rank: matrices [sequence, head] in batches [sequences, heads], of
  // which the first begins at column `first` and each `apart` columns after the last.
  machine::Matrix heads_of(const machine::Tensor& rows, std::int64_t first,
                           std::int64_t apart) const;
  // 0: q, 1: k, 2: v.
  machine::Matrix of_qkv(const machine::Tensor& qkv, int which) const {
    return heads_of(qkv, which * head_, 3 * head_);
  }
  machine::AttentionOptions options() const;

  GridContext context_;
  std::int64_t sequence_, head_;
  GridLinear qkv_, projection_;
};

}  // namespace layers
