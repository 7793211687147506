#pragma once
// The cost of a GptStage in closed form: parameters, floating-point operations and
// collectives over tp (bytes held: gpt_memory.h). The oracles compare these with the counted
// values, exactly.
//
// Notation: n tokens of a micro-batch on this rank (sequences * sequence / cp), h hidden, V
// vocabulary, L layers of this stage, t = tp.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/communicator/calls.h"
#include "layers/context_parallel/context_cost.h"
#include "layers/experts/moe_cost.h"
#include "layers/models/gpt.h"
#include "layers/tensor_grids/plans/tensor_grid.h"
#include "machine/device/dtype.h"
#include "machine/link/link.h"

namespace layers {

// A rank of a context-parallel group, whose degree divides the sequence.
struct ContextRank {
  int ranks = 1, rank = 0;
  ContextOptions options{};
};

// A rank of the ranks that exchange tokens (experts/expert_groups.h). rows: MoeCase's for each
// block of the stage, of one micro-batch; empty: all experts get the same number of rows.
struct ExpertRank {
  ExpertParallel degrees{};
  int rank = 0;
  std::vector<std::vector<std::int64_t>> rows{};
};

// A rank of a tensor-parallel grid, whose stage is a GridGptStage. In 1d there is no grid.
struct GridRank {
  TensorGrid shape{};
  int rank = 0;
  bool cannon = false;
  bool on() const { return shape.mode != TensorParallelMode::one_d; }
};

// One stage under one sharding, with one size of micro-batch.
struct StageCase {
  int tp = 1;
  StageIndex stage;
  int sequences = 1;
  Dtype dtype = Dtype::float32;
  ActivationOptions options{};
  ContextRank cp{};
  ExpertRank experts{};
  // Products in 8 bits (fp8_cost.h), and the ranks that share amaxes of delayed scaling.
  Fp8Options fp8{};
  int amax_ranks = 1;
  int compute_capability = 0;  // of the GPU whose library multiplies codes; 0: they are decoded
  GridRank grid{};             // of the tp ranks

  // Returns the tokens of a micro-batch on this rank.
  std::int64_t tokens(const GptConfig& config) const {
    return std::int64_t{sequences} * config.sequence / cp.ranks;
  }
};
// Returns the cost of the core attention of one layer over cp. Requires cp.ranks above 1.
ContextCost core_attention_cost(const GptConfig& config, const StageCase& stage);

// Returns the case of a block with experts, from 0 on the stage.
MoeCase moe_case(const GptConfig& config, const StageCase& stage, std::size_t block);

// Parameters of the whole model, a tied table once: for GPT-2 V h + s h + layers (12 h² + 13 h) + 2
// h.
std::int64_t parameters_count(const GptConfig& config);
// Parameters of one rank, with q = h + 2 groups head (GPT-2: 3 h), f = ffn and m its matrices, 2 or
// with SwiGLU 3; N = 2 h for LayerNorm, h for RMSNorm. Per layer
//   weights (h q + h² + m f h)/t,   biases (q + (m - 1) f)/t + 2 h,   norms 2 N
// which is 12 h²/t + 7 h/t + 6 h for GPT-2; V h/t + s h with the embedding (no s h if positions are
// rotary), V h/t + N with the head; an encoder has 2 h more with the embedding, and with the head
// h² + h + N + V/t; a layer with experts has those of moe_parameters in place of the perceptron; an
// encoder-decoder has 2 · 32 a/t with the embedding (a heads), N with the
// encoder's last layer, and a decoder's layer 4 h²/t + 3 h/t + h + N more; if both are on the
// stage, a tied table once.
std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage);

// Floating-point operations of forward and backward over whole sequences, as Megatron-LM counts
// them (num_floating_point_operations; only the causal half of core attention; no lookup, norm,
// rotation or softmax):
//   3 * 2 * [tokens (layers (h q + h² + m f h) + h V) + layers h s tokens]
// An encoder has the whole core attention, 2 layers h s tokens, and h² tokens more with its head.
// With a sparse layout core attention has the pairs of its present blocks in place of s² or ½ s²;
// of a decoder's blocks on the diagonal a half.
// An encoder-decoder of that many tokens in either stack has 2.5 layers h s tokens (2 an encoder's
// layer, 3 a decoder's) and 4 h² tokens more for each layer of the decoder.
// A layer with experts has the matrices of the topk experts of a token, of the shared expert, and
// num_experts h in place of m f h; dropped tokens count.
// (GPT-2: 12 h² a layer) which is 6 * [...] with QKᵀ and PV together 2 * ½ * s * h a token. Grouped
// queries narrow q, not the scores.
double model_flops(const GptConfig& config, std::int64_t tokens);

// Shape and bytes of a message between two stages: [tokens, hidden], this rank's own rows; of an
// encoder-decoder those of both stacks and the tables of its bias (packed_rows.h).
Shape boundary_shape(const GptConfig& config, const StageCase& stage);
std::size_t boundary_bytes(const GptConfig& config, const StageCase& stage);

// Collectives over tp and cp for one micro-batch, those over tp in elements of the whole buffer;
// empty if tp is 1 (Narayanan et al. 2021, arXiv:2104.04473, section 3.2):
//
//                     forward                  backward_input          backward_weights
//   embedding         all-reduce n h
//   a layer           2 all-reduces n h        2 all-reduces n h
//   head              3 all-reduces n          all-reduce n h
// An encoder-decoder has n tokens in each stack: two all-reduces in the embedding, and in a layer
// of the decoder three in forward and four in backward_input. With sequence parallelism, all have n
// h elements except the three all-reduces (Korthikanti et al. 2022, arXiv:2205.05198,
// section 4.2.2; their count omits the last column, the inputs gathered again for the weights):
//   embedding         reduce-scatter                                   all-gather
//   a layer           2 all-gathers,           2 all-gathers,          2 all-gathers
//                     2 reduce-scatters        2 reduce-scatters
//   head              all-gather,              reduce-scatter          all-gather
//                     3 all-reduces n
// and for an encoder-decoder two each in the embedding, and in a layer of the decoder 4 all-gathers
// and 3 reduce-scatters, then 3 and 4, then 4.
// Every recomputed layer adds its forward to backward_input; every group of layers with a
// distributed input adds an all-gather of n h.
//
// Every forward of a layer, also a recomputed one, and every backward_input adds the collectives
// over cp of context_cost.h, and its messages, which the last functions return; those of the
// weights are the first exchanges of Cannon's products over a grid. A layer with
// experts has one region over tp, and a second with a shared expert; it has those of
// experts/moe_cost.h over the groups "ep" and "tp_cp". With fp8 the
// all-gathers of the layers are those of fp8_cost.h, and amaxes are shared over the group "fp8".
using collectives::CollectiveCalls;
std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> backward_input_calls(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> backward_weights_calls(const GptConfig& config,
                                                    const StageCase& stage);
ContextMessages forward_messages(const GptConfig& config, const StageCase& stage);
ContextMessages backward_input_messages(const GptConfig& config, const StageCase& stage);
ContextMessages backward_weights_messages(const GptConfig& config, const StageCase& stage);
// The copies of FPDT's chunks with offloading, in the same passes.
HostCopies forward_copies(const GptConfig& config, const StageCase& stage);
HostCopies backward_input_copies(const GptConfig& config, const StageCase& stage);

}  // namespace layers
