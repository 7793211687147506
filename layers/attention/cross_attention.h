#pragma once
// Attention of a decoder's positions to the positions of its encoder, with heads split over tp as
// in attention.h:
//
//   q = x Wqᵀ,  (k, v) = encoded Wkvᵀ   [tokens, head] of each of the heads/tp heads of this rank
//   p [sequences * heads/tp, queries, keys] = softmax(q kᵀ),   without the keys of padding
//   y [tokens, hidden] = all_reduce(concat(p v) Wᵀ) + b
//
// Raffel et al. 2020 (arXiv:1910.10683) do not scale the scores, and these positions have no bias.
// Both stacks have the same number of positions. Dropout of p is that of attention.h.
//
// Communication: forward all-reduces y; backward_input all-reduces d_x and the gradient of encoded.
// With sequence parallelism x, encoded and y hold this rank's own rows: forward gathers both
// inputs. `kept` is the category of memory that a later call needs.

#include <cstdint>
#include <string>

#include "layers/column_parallel_linear.h"
#include "layers/context.h"
#include "layers/dropout.h"
#include "layers/gpt_config.h"
#include "layers/row_parallel_linear.h"

namespace layers {

class CrossAttention {
 public:
  // Kept from forward to backward_weights. backward_input frees q, kv and probabilities and adds
  // d_q and d_kv.
  struct Saved {
    Tensor x, encoded, q, kv, probabilities, context;  // x and encoded are the caller's
    Tensor all_d_y, d_q, d_kv;
    Draw draw;
    const std::int32_t* lengths = nullptr;
  };

  CrossAttention(const Context& context, const std::string& name, const GptConfig& config);

  // lengths: of the encoder's sequences without padding, as for Attention.
  void forward(const Tensor& x, const Tensor& encoded, const Tensor& y, Saved& saved, Category kept,
               const Draw& draw, const std::int32_t* lengths);
  // Adds to d_encoded.
  void backward_input(const Tensor& d_y, const Tensor& d_x, const Tensor& d_encoded, Saved& saved,
                      Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  // Returns the heads that begin at column `first`, as a batch [sequences, heads] of matrices
  // [positions, head].
  Matrix heads_of(const Tensor& tensor, std::int64_t first) const;
  Matrix squares_of(const Tensor& scores) const;
  Tensor make_scores(const Saved& saved, Category category) const;
  machine::SoftmaxMask mask_of(const Saved& saved) const;
  void make_probabilities(Saved& saved, Category category) const;
  void drop(const Draw& draw, const Tensor& in, const Tensor& out) const;

  Context context_;
  std::int64_t heads_, head_, positions_;  // heads: of this rank
  double dropout_;
  std::string dropout_name_;
  ColumnParallelLinear q_, kv_;
  RowParallelLinear projection_;
};

}  // namespace layers
