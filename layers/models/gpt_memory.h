#pragma once
// Bytes that a GptStage holds for a micro-batch, exactly. gpt_memory.cpp lists every tensor of
// every part with its size and the moments between which it is held. All numbers here are sums over
// that list, and the memory oracle compares them with the ledger.
//
// Notation, as in gpt_cost.h: n tokens of a micro-batch on this rank, h hidden, a heads, s
// sequence, t = tp, c = t with sequence parallelism and 1 without, E bytes of a value, A of an
// accumulator; M = E n h, the bytes of [tokens, hidden] for all rows, M/c for the own rows; P = E
// sequences (a/t) s², the bytes of the attention probabilities; R, the bytes of a norm's
// statistics: 2 n A/c for LayerNorm, n A/c for RMSNorm; Q, F and G, the bytes of all columns of
// qkv, of the output of GELU or SwiGLU, and of its input: E n times h + 2 groups head, ffn, and ffn
// or with SwiGLU 2 ffn. GPT-2 has Q = 3 M, F = G = 4 M. The caller counts the tensors that it
// passes (in, out, d_out, d_in): M/c each, except the loss, which is one double.
//
// One layer keeps for backward:
//   nothing recomputed  4 M/c + (Q + M + G + F)/t + P + 2 R
//   selective           4 M/c + (Q + M + G + F)/t + 2 R
//   use_flash_attn      as without recomputation, plus n (a/t) A; P is 0 in all formulas. The same
//                       with a sparse layout, because no block of scores is kept
//   full                M/c for a group's first layer, M/t distributed, with cpu_checkpointing the
//                       same bytes of host memory instead; 0 for the other layers
// A layer with experts keeps in place of the perceptron's M/c + (G + F)/t of norm2, inner and
// active: M/c of norm2, and those of experts/moe_cost.h. With context parallelism, p2p or
// all_gather: as with use_flash_attn. a2a keeps q, k, v and context of its own heads for all
// positions in place of Q/t and the log-sum-exp (context_cost.h); FPDT with offloading keeps them
// on the host, and the log-sum-exp on the device. For GPT-2 in bfloat16 the first formula is sbh
// (8/c + 24/t
// + 2as/(ht)) + 16 sb/c. Korthikanti et al. 2022 (arXiv:2205.05198, table 2) have sbh (10/c + 24/t
// + 5as/(ht)). Their additional 2/c and 3as/(ht) are dropout (masks, and the dropped
// probabilities). We keep neither of them, because both are recomputed. They leave out the
// statistics of the norms.
//
// With the bulk forms of tp_comm_overlap.h (both halves together) backward holds the gathered input
// of a product in addition to the gradient that is reduced, M more, and frees the norm and the
// gradient of the product's output after them.
//
// One layer, recomputed or not, holds after backward_input until backward_weights:
//   8 M/c + (Q + M + G + F)/t + 2 R, and with sequence parallelism 2 M - 2 M/c more, because d_y
//   and d_residual have all rows. hidden_dropout does not change the size: it keeps these two after
//   dropout. attention_dropout keeps no memory: dropped probabilities are a buffer of P within
//   forward and within backward.

#include <cstddef>

#include "layers/models/gpt_cost.h"

namespace layers {

// In one memory.
struct HeldMemory {
  // Category::activations, for each micro-batch in flight; during forward they only grow, during
  // backward they only fall.
  std::size_t saved = 0;
  // Peaks of Category::buffers, which is empty between calls. They exclude the scratch that tp
  // keeps for each size of collective after its first call.
  std::size_t forward_buffers = 0;
  std::size_t backward_buffers = 0;
  // With separate halves: activations after backward_input and their peak during it, for its
  // micro-batch; buffers during either half.
  std::size_t input_half_saved = 0, input_half_peak = 0;
  std::size_t input_half_buffers = 0, weight_half_buffers = 0;
};
// On the device; on the host, by cpu_checkpointing and by FPDT with offloading.
struct StageMemory : HeldMemory {
  HeldMemory host{};
  // Bytes of checkpoints, which move to the host in forward and back in backward.
  std::size_t checkpoints_on_host = 0;
};
StageMemory stage_memory(const GptConfig& config, const StageCase& stage);

}  // namespace layers
