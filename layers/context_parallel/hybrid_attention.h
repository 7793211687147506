#pragma once
// Ulysses inside, ring attention outside (Fang and Zhao 2024, arXiv:2405.07719, section 4;
// Megatron-LM's --cp-comm-type a2a+p2p): consecutive ranks of `a2a` exchange their rows for heads,
// and each then goes around the ring of `p2p`, the ranks with the same heads.
//
// The ring's ranks have the rows of placement.outer(), which the ranks of a2a split. The degree of
// Ulysses is limited by the heads, that of the ring is not; fewer ranks make the ring's blocks
// longer, with more computation behind each message.

#include "layers/context_parallel/ulysses_attention.h"

namespace layers {

class HybridAttention {
 public:
  // attention.cp is not used. Throws std::logic_error if the groups do not have the ranks of the
  // placement, or if a rank's queries do not share its heads of keys evenly.
  HybridAttention(const CoreAttention& attention, collectives::Communicator& a2a,
                  collectives::Communicator& p2p);
  HybridAttention(const HybridAttention&) = delete;
  HybridAttention& operator=(const HybridAttention&) = delete;

  using Saved = UlyssesAttention::Saved;
  void forward(const machine::Tensor& q, const machine::Tensor& k, const machine::Tensor& v,
               const machine::Tensor& out, Saved& saved, machine::Category kept) const {
    ulysses_.forward(q, k, v, out, saved, kept);
  }
  void backward(const machine::Tensor& d_out, const AttentionGradients& gradients,
                Saved& saved) const {
    ulysses_.backward(d_out, gradients, saved);
  }

 private:
  CoreAttention inside_, outside_;  // of a2a, of p2p
  UlyssesAttention ulysses_;
};

}  // namespace layers
