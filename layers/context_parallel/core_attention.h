#pragma once
// Attention of queries, keys and values whose sequence is split over a context-parallel group (cp):
// what all algorithms of this folder compute, and their tensors.
//
//   out = softmax(scale q kᵀ) v of every sequence and head, causal or not
//
// Rank r holds the rows placement.rows(r) of each sequence: q, out [tokens, heads * head], k, v
// [tokens, kv_heads * head], tokens = sequences * rows, sequence by sequence. With fewer heads of
// keys than of queries, head h uses head h / (heads / kv_heads) (Ainslie et al. 2023,
// arXiv:2305.13245). log_sum_exp [sequences * heads, rows] has accumulators: float, or double for
// double values.
//
//   const CoreAttention attention{device, cp, {SequenceOrder::zigzag, 4096, cp.size()}, dtype,
//                                 sequences, heads, kv_heads, head, scale};
//   ring_attention(attention, {q, k, v, out, log_sum_exp});
//   ring_attention_backward(attention, {q, k, v, out, log_sum_exp}, d_out, {d_q, d_k, d_v});
//
// The blockwise kernel computes every part (machine/device/flash_attention.h), so no rank holds a
// matrix of scores. A group of one rank calls it once and keeps no other tensor. Every tensor is on
// `device`; sums of parts round once, when they are stored in dtype.

#include <cstdint>

#include "collectives/communicator/communicator.h"
#include "layers/context_parallel/splits/placement.h"
#include "machine/device/flash_attention.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace layers {

struct CoreAttention {
  machine::Device& device;
  collectives::Communicator& cp;
  SequencePlacement placement;  // of cp.size() ranks
  machine::Dtype dtype = machine::Dtype::float32;
  std::int64_t sequences = 1, heads = 1, kv_heads = 1, head = 1;  // head: columns of a head
  double scale = 1;
  bool causal = true;

  machine::Stream& stream() const { return device.stream(); }
  machine::Kernels& kernels() const { return device.stream().kernels(); }
  machine::Dtype accumulator() const {
    return dtype == machine::Dtype::float64 ? dtype : machine::Dtype::float32;
  }
  machine::Tensor tensor(machine::Shape shape, machine::Category category) const {
    return machine::Tensor(device, dtype, shape, category);
  }
  machine::Tensor sums(machine::Shape shape, machine::Category category) const {
    return machine::Tensor(device, accumulator(), shape, category);
  }
  std::int64_t width() const { return heads * head; }
  std::int64_t kv_width() const { return kv_heads * head; }
  std::int64_t rows() const { return placement.rows(cp.rank()); }
  std::int64_t tokens(int rank) const { return sequences * placement.rows(rank); }
  std::int64_t tokens() const { return tokens(cp.rank()); }
  std::int64_t most_tokens() const { return sequences * placement.most_rows(); }
  // Throws std::logic_error if the group does not have the placement's ranks, or heads of queries
  // do not share heads of keys evenly.
  void check() const;
};

// The tensors of a forward pass. Backward reads all of them.
struct Attended {
  machine::Tensor q, k, v, out, log_sum_exp;
};
struct AttentionGradients {
  machine::Tensor d_q, d_k, d_v;
};

// Returns rows [first, first + count) of each sequence of [sequences * rows, heads * head] as a
// batch [sequences, heads] of matrices [count, head]. count is at least 1.
machine::Matrix heads_of(const CoreAttention& attention, const machine::Tensor& tensor,
                         std::int64_t first, std::int64_t count);

// Runs the attention of a group of one rank.
void attend_alone(const CoreAttention& attention, const Attended& tensors);
void attend_alone_backward(const CoreAttention& attention, const Attended& tensors,
                           const machine::Tensor& d_out, const AttentionGradients& gradients);

}  // namespace layers
