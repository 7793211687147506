#pragma once
// Causal self-attention with heads cut over tp (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
// queries, keys and values by one column-parallel layer, the output by a row-parallel one.
//
//   q, k, v [tokens, head] of each of the heads/tp heads of this rank
//   p [sequences * heads/tp, sequence, sequence] = softmax(q kᵀ / sqrt(head)), key <= query
//   y [tokens, hidden] = all_reduce(concat(p v) Wᵀ) + b
//
// With config.group_query_attention (Ainslie et al. 2023, arXiv:2305.13245) a group of heads, r =
// heads / num_query_groups, shares one head of keys and one of values; without, a group is a head.
// Rows of the QKV weight lie group by group, (q of its r heads, k, v) of group 0, then of group 1,
// …: so a shard of whole groups is a contiguous block of rows, whatever the degree.
//
// config.attention_dropout (Srivastava et al. 2014, JMLR 15) drops of p as dropout.h says, but for
// the index: an element's among all sequences of the training, heads, queries and keys. p is kept
// as it was; backward drops it again.
//
// With rotary positions (Su et al. 2021, arXiv:2104.09864) q and k are turned in place by the
// position of their row in its sequence, and their gradients turned back.
//
// Gradients of k and v are sums over the heads of a group: blockwise in the accumulator, plainly
// one head after the other in the dtype.
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
#include "layers/dropout.h"
#include "layers/gpt_config.h"
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
    Draw draw;
  };

  Attention(const Context& context, const std::string& name, const GptConfig& config);

  void forward(const machine::Tensor& x, const machine::Tensor& y, Saved& saved,
               machine::Category kept, const Draw& draw = {});
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x, Saved& saved,
                      machine::Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  void initialize(const Initializer& initializer);
  Parameters parameters();

 private:
  // `count` heads of [tokens, columns], which begin at column `first` and lie `apart` columns from
  // one another, as a batch [sequences, count] of matrices [sequence, head].
  machine::Matrix heads_of(const machine::Tensor& tensor, std::int64_t first, std::int64_t count,
                           std::int64_t apart) const;
  // Head j of every group, or the k (j = r) or v (j = r + 1) of every group.
  machine::Matrix of_groups(const machine::Tensor& qkv, std::int64_t j) const;
  machine::Matrix of_context(const machine::Tensor& context, std::int64_t j) const;
  machine::Matrix of_scores(const machine::Tensor& scores, std::int64_t j) const;
  // What one call of the blockwise kernel takes: all groups of one head, or one of several.
  struct Block {
    machine::Matrix q, k, v;
  };
  std::int64_t blocks() const { return group_heads_ == 1 ? 1 : groups_; }
  Block block_of(const machine::Tensor& qkv, std::int64_t block) const;
  machine::Matrix block_of_context(const machine::Tensor& context, std::int64_t block) const;
  machine::Tensor block_of_rows(const machine::Tensor& log_sum_exp, std::int64_t block) const;
  machine::Tensor make_scores(std::int64_t tokens, machine::Category category) const;
  machine::Tensor make_probabilities(const machine::Tensor& qkv, machine::Category category) const;
  // Of all probabilities, or their gradients; out may be in.
  void drop(const Draw& draw, const machine::Tensor& in, const machine::Tensor& out) const;
  machine::Tensor dropped(const Saved& saved) const;  // p itself where none is
  void rotate(const machine::Tensor& qkv) const;
  void rotate_back(const machine::Tensor& d_qkv) const;
  // From qkv to context, and from d_context to d_qkv.
  void attend(Saved& saved, machine::Category kept) const;
  void attend_blockwise(Saved& saved, machine::Category kept) const;
  void attend_backward(const machine::Tensor& d_context, Saved& saved) const;
  void attend_blockwise_backward(const machine::Tensor& d_context, Saved& saved) const;

  Context context_;
  std::int64_t heads_, groups_, head_, sequence_;  // heads and groups of this rank; size of a head
  std::int64_t group_heads_;                       // r
  bool rotary_;
  double rotary_base_, scale_, dropout_;
  std::string dropout_name_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
};

}  // namespace layers
