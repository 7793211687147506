#pragma once
// Ring attention (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889): keys and values go around the
// ring of cp ranks, while each rank attends with its own queries to the block that it holds.
//
//   round 0            own block; it is sent to the next rank meanwhile
//   round i < P        the block of rank r - i; it is sent on meanwhile, but not in the last round
//
// Forward sends P - 1 blocks of keys and values in dtype. Backward sends them again, and the
// gradient of every block follows its block in accumulators: the rank after the owner starts the
// sum, P - 1 messages bring it back to the owner, which adds its own part.
//
// With n tokens of a rank, K columns of keys, all equal: forward 2 (P - 1) n K E bytes in P - 1
// messages, backward 2 (P - 1) n K (E + A) in 2 (P - 1) messages.
//
// Striped and zigzag placement balance a causal mask (placement.h).

#include "layers/context_parallel/core_attention.h"

namespace layers {

// Writes out and log_sum_exp.
void ring_attention(const CoreAttention& attention, const Attended& tensors);
void ring_attention_backward(const CoreAttention& attention, const Attended& tensors,
                             const machine::Tensor& d_out, const AttentionGradients& gradients);

}  // namespace layers
