#pragma once
// What a GptStage costs, in closed form: parameters, floating-point operations, bytes held and
// collectives over tp. The memory and volume oracles compare these with what was counted, exactly.
//
// Notation: n tokens of a micro-batch (sequences * sequence), s sequence, h hidden, a heads, V
// vocabulary, L layers of this stage, t = tp; E bytes of a value, A bytes of an accumulator (4, or
// 8 under double). M = E n h, the bytes of one [tokens, hidden]; P = E sequences (a/t) s², of the
// attention probabilities. Tensors that the caller passes (in, out, d_out, d_in) are the caller's
// to count: M each, except the loss, which is one double.
//
// Kept for backward by one layer, M (4 + 12/t) + P + 4 n A:
//   x M · mean, rstd 2nA · norm1 M · qkv 3M/t · probabilities P · context M/t ·
//   residual M · mean, rstd 2nA · norm2 M · inner 4M/t · active 4M/t
// In bfloat16 that is sbh (8 + 24/t + 2as/(ht)) + 16 sb. Korthikanti et al. 2022 (arXiv:2205.05198)
// have sbh (10 + 24/t + 5as/(ht)): 2 and 3as/(ht) of theirs are dropout (masks, and the dropped
// probabilities), which we have none of; they leave out the 16 sb of the statistics.
//
// Held after backward_input until backward_weights, by one layer, M (8 + 12/t) + 4 n A:
//   x, norm1, residual, norm2 4M · context M/t · active 4M/t · statistics 4nA ·
//   d_y, d_residual, d_norm1, d_norm2 4M · d_inner 4M/t · d_qkv 3M/t

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/gpt.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"

namespace layers {

// One stage under one sharding, with one size of micro-batch.
struct StageCase {
  int tp = 1;
  StageIndex stage;
  int sequences = 1;
  machine::Dtype dtype = machine::Dtype::float32;
};

// Of the whole model, the tied table once: V h + s h + layers (12 h² + 13 h) + 2 h.
std::int64_t parameters_count(const GptConfig& config);
// That one rank holds: layer by layer 12 h²/t + 7 h/t + 6 h; V h/t + s h with the embedding,
// V h/t + 2 h with the head (2 h where both are here).
std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage);

// Floating-point operations of forward and backward over whole sequences, as Megatron-LM counts
// them (num_floating_point_operations; core attention by the causal half; no lookup, norm or
// softmax):
//   3 * 2 * [tokens (layers 12 h² + h V) + layers h s tokens]
// which is 6 * [...] with QKᵀ and PV together 2 * ½ * s * h a token.
double model_flops(const GptConfig& config, std::int64_t tokens);

// Bytes of one [tokens, hidden]: what passes between two stages.
std::size_t boundary_bytes(const GptConfig& config, const StageCase& stage);

// Category::activations, for each micro-batch in flight.
//   After forward:  L layers; - M (its x is the caller's) unless first;
//                   head: x, norm 2M · logits E n V/t · mean, rstd, max, sum of exp 4nA.
std::size_t activation_bytes(const GptConfig& config, const StageCase& stage);
//   After backward_input: L layers; - M (x) unless first, + M (d_embedding) if first; - M (d_y)
//                   unless last; head: x, norm, d_norm 3M · logits E n V/t · mean, rstd 2nA.
std::size_t weight_half_bytes(const GptConfig& config, const StageCase& stage);
//   Largest during backward_input: at the head + 2M - 2nA; a block adds its d_x (unless the
//                   caller's), d_norm2, d_residual, d_norm1 and d_qkv, up to M (4 + 3/t), and then
//                   frees qkv and probabilities.
std::size_t backward_input_activation_peak_bytes(const GptConfig& config, const StageCase& stage);

// Peaks of Category::buffers, which is empty between calls; on top comes the scratch that tp keeps
// for a size of all-reduce from its first call on.
//   forward         max(scores P, head's target and token_loss 2nA)
//   backward        M (3 + 8/t) + P (d_norm2, d_residual, d_norm1 · d_inner 4/t, d_qkv 3/t,
//                   d_context 1/t · d_scores) + M for each of d_y and d_x not the caller's
//   backward_input  max(d_active 4M/t, d_context M/t + d_scores P)
//   backward_weights  0
std::size_t forward_buffer_bytes(const GptConfig& config, const StageCase& stage);
std::size_t backward_buffer_bytes(const GptConfig& config, const StageCase& stage);
std::size_t backward_input_buffer_bytes(const GptConfig& config, const StageCase& stage);

// Collectives over tp for one micro-batch; none when tp is 1. backward_weights has none.
//   forward   embedding 1 of n h; a layer 2 of n h; head 3 of n (accumulators)
//   backward  head 1 of n h; a layer 2 of n h
struct CollectiveCalls {
  machine::Operation operation = machine::Operation::all_reduce;
  machine::Dtype dtype = machine::Dtype::float32;
  std::int64_t elements = 0;  // of the tensor
  int calls = 0;
  bool operator==(const CollectiveCalls&) const = default;
};
std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> backward_calls(const GptConfig& config, const StageCase& stage);

}  // namespace layers
