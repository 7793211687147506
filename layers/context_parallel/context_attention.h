#pragma once
// Attention of one layer over a context-parallel group, by the algorithm that ContextParallel
// names.
//
//   ContextAttention attention(cp, device, dtype, {.sequences = 2, .heads = 4, …});
//   attention.forward({q, k, v, out}, saved, kept);
//   attention.backward(d_out, {d_q, d_k, d_v}, saved);
//
// context_cost.h counts its bytes on the wire and in memory.

#include <optional>

#include "layers/context_parallel/context_parallel.h"
#include "layers/context_parallel/core_attention.h"
#include "layers/context_parallel/fpdt_attention.h"
#include "layers/context_parallel/hybrid_attention.h"
#include "layers/context_parallel/ulysses_attention.h"

namespace layers {

struct HeadShape {
  std::int64_t sequences = 1, heads = 1, kv_heads = 1, head = 1;  // head: columns of a head
};

class ContextAttention {
 public:
  // Kept from forward to backward. With a2a, FPDT included, and a2a+p2p the parts are not kept.
  struct Saved {
    Attended parts;
    Attended whole;  // of the own heads
  };

  // Requires a group.
  ContextAttention(const ContextParallel& cp, machine::Device& device, machine::Dtype dtype,
                   const HeadShape& shape, double scale, bool causal = true);
  ContextAttention(const ContextAttention&) = delete;
  ContextAttention& operator=(const ContextAttention&) = delete;

  std::int64_t sequences() const { return core_.sequences; }
  // Returns whether backward reads q, k and v.
  bool keeps_parts() const { return !ulysses_ && !hybrid_ && !fpdt_; }
  // Writes out. Allocates tensors that backward needs in memory of the category `kept`. The caller
  // does not set log_sum_exp.
  void forward(const Attended& parts, Saved& saved, machine::Category kept) const;
  void backward(const machine::Tensor& d_out, const AttentionGradients& gradients,
                Saved& saved) const;  // leaves saved empty

 private:
  CoreAttention core_;
  bool gathers_;
  std::optional<UlyssesAttention> ulysses_;
  std::optional<HybridAttention> hybrid_;
  std::optional<FpdtAttention> fpdt_;
};

}  // namespace layers
