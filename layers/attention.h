#pragma once
// Causal self-attention with heads cut over tp (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
// queries, keys and values by one column-parallel layer, the output by a row-parallel one.
//
//   q, k, v [tokens, head] of each of the heads/tp heads of this rank
//   p [sequences * heads/tp, sequence, sequence] = softmax(q kᵀ / sqrt(head)), key <= query
//   y [tokens, hidden] = all_reduce(concat(p v) Wᵀ) + b
//
// Rows of the QKV weight lie head by head, (q, k, v) of head 0, then of head 1, …: so a shard of
// whole heads is a contiguous block of rows, whatever the degree.
//
// Communication: that of the two layers. Where it says `kept`, what a later call needs is taken
// under that category. With context.recompute_core_attention p is not kept: backward makes it again
// from q and k, the same bits. With context.flash_attention there is no p, nor any other [sequence,
// sequence] (machine/device/flash_attention.h); of its rows the logarithm of the sum of exp is
// kept, [sequences * heads/tp * sequence] accumulators.

#include <cstdint>
#include <string>

#include "layers/column_parallel_linear.h"
#include "layers/context.h"
#include "layers/row_parallel_linear.h"
#include "machine/device/gemm.h"

namespace layers {

class Attention {
 public:
  // From forward to backward_weights. backward_input frees qkv, probabilities and log_sum_exp and
  // adds d_qkv.
  struct Saved {
    machine::Tensor x, qkv, probabilities, log_sum_exp, context;  // x is the caller's
    machine::Tensor all_d_y, d_qkv;  // of all rows; without sequence parallelism the caller's d_y
  };

  Attention(const Context& context, const std::string& name, std::int64_t hidden,
            std::int64_t heads, std::int64_t sequence);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept);
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  void initialize(const Initializer& initializer);
  Parameters parameters();

 private:
  enum class Part { query, key, value };
  // One part of all heads, as a batch [sequences, heads/tp] of matrices [sequence, head].
  machine::Matrix heads_of(const machine::Tensor& qkv, Part part) const;
  machine::Matrix heads_of_context(const machine::Tensor& context) const;
  machine::Matrix scores_of(const machine::Tensor& scores) const;
  machine::Tensor make_scores(std::int64_t tokens, machine::Category category) const;
  machine::Tensor make_probabilities(const machine::Tensor& qkv, machine::Category category) const;
  // From qkv to context, and from d_context to d_qkv.
  void attend(Saved& saved, machine::Category kept) const;
  void attend_blockwise(Saved& saved, machine::Category kept) const;
  void attend_backward(const machine::Tensor& d_context, Saved& saved) const;
  void attend_blockwise_backward(const machine::Tensor& d_context, Saved& saved) const;

  Context context_;
  std::int64_t heads_, head_, sequence_;  // heads of this rank; size of one
  double scale_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
};

}  // namespace layers
