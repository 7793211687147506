#pragma once
// Bytes that a GptStage holds for a micro-batch, exactly. gpt_memory.cpp lists every tensor of
// every part with its size and the moments between which it is held; everything here is a sum over
// that list, and the memory oracle compares it with the ledger.
//
// Notation, as in gpt_cost.h: n tokens of a micro-batch, h hidden, a heads, s sequence, t = tp, c =
// t with sequence parallelism and 1 without, E bytes of a value, A of an accumulator; M = E n h, a
// [tokens, hidden] of all rows, M/c of the own; P = E sequences (a/t) s², of the attention
// probabilities; R, of the statistics of a norm: 2 n A/c of LayerNorm, n A/c of RMSNorm; Q, F and
// G, of all columns of qkv, of what GELU or SwiGLU makes and of what it takes: E n times h + 2
// groups head, ffn, and ffn or with SwiGLU 2 ffn. GPT-2 has Q = 3 M, F = G = 4 M. Tensors that the
// caller passes (in, out, d_out, d_in) are the caller's to count: M/c each, except the loss, which
// is one double.
//
// Kept for backward by one layer:
//   nothing recomputed  4 M/c + (Q + M + G + F)/t + P + 2 R
//   selective           4 M/c + (Q + M + G + F)/t + 2 R
//   use_flash_attn      the same and n (a/t) A; P is 0 in all that follows
//   full                M/c of a group's first layer, M/t distributed, with cpu_checkpointing the
//                       same bytes of host memory instead; nothing of the others
// In bfloat16 the first is, of GPT-2, sbh (8/c + 24/t + 2as/(ht)) + 16 sb/c. Korthikanti et al.
// 2022 (arXiv:2205.05198, table 2) have sbh (10/c + 24/t + 5as/(ht)): 2/c and 3as/(ht) of theirs
// are dropout (masks, and the dropped probabilities), of which we keep none, for both are made
// again; they leave out the statistics of the norms.
//
// Held after backward_input until backward_weights by one layer, recomputed or not:
//   8 M/c + (Q + M + G + F)/t + 2 R, and with sequence parallelism 2 M - 2 M/c more: d_y and
//   d_residual are of all rows. hidden_dropout changes none of it: it has these two dropped instead
//   of as they came. attention_dropout keeps nothing either: dropped probabilities are a buffer of
//   P within forward and within backward.

#include <cstddef>

#include "layers/models/gpt_cost.h"

namespace layers {

struct StageMemory {
  // Category::activations, for each micro-batch in flight; during forward they only grow, during
  // backward they only fall.
  std::size_t saved = 0;
  // Peaks of Category::buffers, which is empty between calls; without the scratch that tp keeps for
  // a size of collective from its first call on.
  std::size_t forward_buffers = 0;
  std::size_t backward_buffers = 0;
  // With separate halves: activations after backward_input and their peak during it, for its
  // micro-batch; buffers during either half.
  std::size_t input_half_saved = 0, input_half_peak = 0;
  std::size_t input_half_buffers = 0, weight_half_buffers = 0;
  // Bytes of host memory for each micro-batch in flight, from forward on. They move there in
  // forward and back, once each.
  std::size_t host_saved = 0;
};
StageMemory stage_memory(const GptConfig& config, const StageCase& stage);

}  // namespace layers
