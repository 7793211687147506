#pragma once
// Context parallelism by all-gather (Llama team 2024, arXiv:2407.21783, section 3.3.2): every rank
// gathers all keys and values and attends with its own queries. Backward gathers them again, and a
// reduce-scatter sums the gradients of keys and values in accumulators.
//
// A share has the tokens of the rank that has most, m, so shares are equal; the rest of a shorter
// share is zero. With K columns of keys: forward gathers 2 P m K elements in dtype. Backward
// gathers them again and reduces 2 P m K accumulators. A rank holds the keys and values of the
// whole sequence, unlike in ring attention, and cannot hide the gather behind its first part.

#include "layers/context_parallel/core_attention.h"

namespace layers {

// Writes out and log_sum_exp.
void all_gather_attention(const CoreAttention& attention, const Attended& tensors);
void all_gather_attention_backward(const CoreAttention& attention, const Attended& tensors,
                                   const machine::Tensor& d_out,
                                   const AttentionGradients& gradients);

}  // namespace layers
