#pragma once
// Ulysses (Jacobs et al. 2023, arXiv:2309.14509): an all-to-all turns a split of the sequence into
// a split of the heads, every rank attends with its heads to the whole sequence, and an all-to-all
// turns the result back.
//
//   q, k, v [own tokens, all heads] → [all tokens, own heads], out [all tokens, own heads] → …
//
// Heads are split as in head_split.h: ranks need not divide them, but there are at least as many
// heads of queries as ranks. Heads of keys that several ranks use are sent to each of them, and the
// gradients of the copies are summed in accumulators. Rows are in the order of positions during the
// attention, so every placement has the plain mask.
//
// Forward sends four all-to-all (q, k, v; out) and backward four (d_out; d_q, d_k, d_v), of dtype.
// Every rank sends each of its tokens' heads that another rank uses once.

#include <memory>

#include "collectives/traffic_matrix.h"
#include "layers/context_parallel/core_attention.h"
#include "layers/context_parallel/head_split.h"

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
  // The ranges of heads of all ranks, and their messages in both directions.
  struct Route {
    std::vector<collectives::ChunkRange> heads;
    std::shared_ptr<const collectives::TrafficMatrix> to_heads, to_sequence;
  };
  std::vector<HeadSplit::Call> calls() const;  // of the blockwise kernel on whole sequences
  Route make_route(const std::vector<collectives::ChunkRange>& heads) const;
  std::int64_t own_width(const Route& route) const;
  machine::Tensor make_whole(const Route& route, machine::Category category) const;
  // [own tokens, all heads] to [all tokens, own heads].
  machine::Tensor to_heads(const machine::Tensor& part, const Route& route,
                           machine::Category category) const;
  // Back. The first writes each head once. The second sums the copies of a head.
  machine::Tensor exchange_to_sequence(const machine::Tensor& whole, const Route& route) const;
  void to_sequence(const machine::Tensor& whole, const Route& route,
                   const machine::Tensor& part) const;
  void sum_to_sequence(const machine::Tensor& whole, const machine::Tensor& part) const;
  // Copies the heads of the ranks of a layer, or of all ranks if layer is -1.
  void place_heads(const machine::Tensor& arrived, const Route& route, int layer,
                   const machine::Tensor& part) const;

  const CoreAttention& attention_;
  const CoreAttention* const ring_;
  HeadSplit split_;
  std::vector<int> layers_;
  int copies_;
  Route queries_, keys_;
};

}  // namespace layers
