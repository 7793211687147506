#pragma once
// Self-attention with heads split over tp (Shoeybi et al. 2019, arXiv:1909.08053, section
// 3): queries, keys and values by one column-parallel layer, the output by a row-parallel one.
//
//   q, k, v [tokens, head] of each of the heads/tp heads of this rank
//   p [sequences * heads/tp, sequence, sequence] = softmax(q kᵀ / sqrt(head))
//   y [tokens, hidden] = all_reduce(concat(p v) Wᵀ) + b
//
// A query of a decoder sees the keys up to its own position, a query of an encoder all keys. With
// lengths of the sequences, a query does not see the keys behind the length (padding).
//
// With config.group_query_attention (Ainslie et al. 2023, arXiv:2305.13245) a group of heads, r =
// heads / num_query_groups, shares one head of keys and one of values; else a group is one head.
// The rows of the QKV weight are stored group by group, (q of its r heads, k, v) of group 0, then
// of group 1, …. So a shard of whole groups is a contiguous block of rows at every degree.
//
// config.attention_dropout (Srivastava et al. 2014, JMLR 15) drops elements of p as in dropout.h.
// The index counts all sequences of the training, heads, queries and keys. p is kept without
// dropout, and backward applies dropout again. The blockwise kernel drops the same elements.
//
// With relative positions (relative_bias.h) a bias is added to the scores, which are not scaled. It
// requires heads without groups, and does not support the blockwise kernel.
//
// With rotary positions (Su et al. 2021, arXiv:2104.09864) q and k are rotated in place by the
// position of their row in its sequence, and their gradients are rotated back.
//
// Gradients of k and v are sums over the heads of a group: in the accumulator if blockwise, else
// one head after the other in the dtype.
//
// Communication is that of the two layers. `kept` is the category of memory that a later call
// needs. With context.recompute_core_attention p is not kept: backward recomputes it from q and k,
// with the same bits. With context.flash_attention there is no p and no other matrix [sequence,
// sequence] (machine/device/flash_attention.h). The logarithm of the sum of exp of each row is
// kept: [sequences * heads/tp * sequence] accumulators.
//
// With a sparse layout (sparse_layout.h; Child et al. 2019, arXiv:1904.10509) a query sees only the
// keys of the present blocks of its head. The layout is that of all heads, so it does not depend on
// tp. A decoder requires a unidirectional layout, an encoder a bidirectional one. Absent blocks
// cost no product. Tensors are those of context.flash_attention, which it requires. config.sparse.
//
// With context parallelism (context.cp, which requires flash_attention) a rank has the rows of its
// positions of every sequence. q, k and v are separate tensors, and context_attention.h attends to
// the keys of all ranks.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/attention/relative_bias.h"
#include "layers/column_parallel_linear.h"
#include "layers/context.h"
#include "layers/context_parallel/context_attention.h"
#include "layers/dropout.h"
#include "layers/gpt_config.h"
#include "layers/row_parallel_linear.h"
#include "machine/device/flash_attention.h"
#include "machine/device/gemm.h"
#include "machine/device/sparse/sparse_attention.h"

namespace layers {

class Attention {
 public:
  // Kept from forward to backward_weights. backward_input frees qkv, probabilities and log_sum_exp
  // and adds d_qkv.
  // If it computes both halves of the first product (Context::joins_halves), x and the gradient of
  // that product are freed, too.
  struct Saved {
    Tensor x, qkv, probabilities, log_sum_exp, context;  // x is the caller's
    Tensor all_d_y, d_qkv;            // of all rows; without sequence parallelism the caller's d_y
    ContextAttention::Saved over_cp;  // with context parallelism, in place of qkv and log_sum_exp
    Attended parts;                   // and in place of over_cp if that is recomputed
    Draw draw;
    const std::int32_t* lengths = nullptr;
    RelativeBias bias;  // the caller's
  };

  Attention(const Context& context, const std::string& name, const GptConfig& config);

  // lengths: [sequences], each at least 1, in memory that the device reads, unchanged until
  // backward_input; null: no padding. bias: required with relative positions.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept, const Draw& draw = {},
               const std::int32_t* lengths = nullptr, const RelativeBias& bias = {});
  // Adds the gradient of the bias's table to d_bias.
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept,
                      const Tensor& d_bias = {});
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();
  // Returns the pairs of a query and a key that sparse attention has processed in all passes, or
  // nothing if the device does not count them (machine/device/sparse/sparse_attention.h).
  std::optional<std::int64_t> scores() const;

 private:
  // Returns `count` heads of [tokens, columns], which begin at column `first` with a distance of
  // `apart` columns, as a batch [sequences, count] of matrices [sequence, head].
  Matrix heads_of(const Tensor& tensor, std::int64_t first, std::int64_t count,
                  std::int64_t apart) const;
  // Returns head j of every group, or the k (j = r) or v (j = r + 1) of every group.
  Matrix of_groups(const Tensor& qkv, std::int64_t j) const;
  Matrix of_context(const Tensor& context, std::int64_t j) const;
  Matrix of_scores(const Tensor& scores, std::int64_t j) const;
  // The operands of one call of the blockwise kernel: all groups of one head, or one group of
  // several heads.
  struct Block {
    Matrix q, k, v;
  };
  std::int64_t blocks() const { return group_heads_ == 1 ? 1 : groups_; }
  Block block_of(const Tensor& qkv, std::int64_t block) const;
  Matrix block_of_context(const Tensor& context, std::int64_t block) const;
  Tensor block_of_rows(const Tensor& log_sum_exp, std::int64_t block) const;
  machine::AttentionOptions options_of(const Saved& saved, std::int64_t block) const;
  void make_sparse(const SparseOptions& options, int heads);  // heads: of all ranks
  machine::SoftmaxMask mask_of(const Saved& saved) const;
  Tensor make_scores(std::int64_t tokens, Category category) const;
  Tensor make_probabilities(const Saved& saved, Category category) const;
  // Applies dropout to probabilities or to their gradients. `out` may be `in`.
  void drop(const Draw& draw, const Tensor& in, const Tensor& out) const;
  Tensor dropped(const Saved& saved) const;         // p itself without dropout
  void rotate(const Tensor& qkv, bool back) const;  // in place; back: the gradient
  // Compute context from qkv, and d_qkv from d_context.
  void attend(Saved& saved, Category kept) const;
  void attend_blockwise(Saved& saved, Category kept) const;
  void compute_blocks(const Saved& saved) const;  // the context and its log-sum-exp
  void attend_backward(const Tensor& d_context, Saved& saved, const Tensor& d_bias) const;
  void attend_blockwise_backward(const Tensor& d_context, Saved& saved) const;
  void attend_over_cp(Saved& saved, Category kept);
  AttentionGradients attend_over_cp_backward(const Tensor& d_context, Saved& saved) const;
  // Queries, keys and values as tensors [tokens, columns] of whole heads.
  struct Parts {
    Tensor q, k, v;
  };
  Parts make_parts(std::int64_t tokens, Category category) const;
  // Copies columns between qkv and its parts.
  enum class Copy { to_parts, from_parts };
  void copy_columns(const Tensor& qkv, const Parts& parts, Copy direction) const;

  Context context_;
  std::int64_t heads_, groups_, head_;  // heads and groups of this rank; size of a head
  std::int64_t sequence_;               // rows of a sequence on this rank
  std::int64_t group_heads_;            // r
  bool causal_, rotary_;
  double rotary_base_, scale_, dropout_;
  std::string dropout_name_;
  ColumnParallelLinear qkv_;
  RowParallelLinear projection_;
  std::vector<std::unique_ptr<machine::SparseAttention>> sparse_;  // by block, or empty
  std::unique_ptr<ContextAttention> over_cp_;  // of the last number of sequences
};

}  // namespace layers
