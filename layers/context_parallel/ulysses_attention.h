#pragma once
// Ulysses (Jacobs et al. 2023, arXiv:2309.14509): an all-to-all turns a split of the sequence into
// a split of the heads, every rank attends with its heads to the whole sequence, and an all-to-all
// turns the result back.
//
//   q, k, v [own tokens, all heads] → [all tokens, own heads], out [all tokens, own heads] → …
//
// head_exchange.h has the exchanges. Rows are in the order of positions during the attention, so
// every placement has the plain mask.
//
// Forward sends four all-to-all (q, k, v; out) and backward four (d_out; d_q, d_k, d_v), of dtype.
// Every rank sends each of its tokens' heads that another rank uses once.

#include "layers/context_parallel/core_attention.h"
#include "layers/context_parallel/head_exchange.h"

namespace layers {

class UlyssesAttention {
 public:
  // Both outlive the object. ring: attention of the own heads, whose rows are those of the group of
  // `attention`; null: the group has whole sequences.
  explicit UlyssesAttention(const CoreAttention& attention, const CoreAttention* ring = nullptr);

  // The tensors of the own heads: [sequences * sequence, heads of the rank * head]. On one rank
  // they are the caller's. log_sum_exp is stored call by call (head_split.h).
  using Saved = Attended;

  // Writes out, and `saved` in memory of `kept`.
  void forward(const machine::Tensor& q, const machine::Tensor& k, const machine::Tensor& v,
               const machine::Tensor& out, Saved& saved, machine::Category kept) const;
  void backward(const machine::Tensor& d_out, const AttentionGradients& gradients,
                Saved& saved) const;  // leaves saved empty

 private:
  std::vector<HeadSplit::Call> calls() const;  // of the blockwise kernel on whole sequences

  const CoreAttention& attention_;
  const CoreAttention* const ring_;
  HeadExchange exchange_;
};

}  // namespace layers
