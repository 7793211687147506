#pragma once
// The cost of a GridGptStage in closed form: the sums of grid_cost.h over its layers. gpt_cost.h
// and gpt_memory.h return these for a StageCase with a grid. Shares no code with the layers.
//
// Notation: n tokens of a micro-batch, h hidden, f ffn, V vocabulary, s sequence, p ranks of the
// grid, l = q of 3d, E bytes of a value, A of an accumulator; M = E n h / p, the bytes of a rank's
// block of [tokens, hidden]; F = E n f / p, H = E n V / p of the logits; r = n/q, n/dq or n/l² rows
// of a rank (2d, 2.5d, 3d), R = 2 r A, the statistics of a norm; S = A n a / p, the log-sum-exp of
// a heads.
//
// A layer has one product [h, 3h] and one [f, h] as pairs with [h, h] and [h, f], and two norms.
// The embedding is that of the token table and that of positions. The head is grid_head_cost, a
// norm, and three all-reduces of r accumulators over the group that splits the vocabulary.
//
// One layer keeps for backward 8 M + 2 F + S + 2 R with its input: norm1, residual, qkv (3 M),
// attended, norm2, inner and active. After backward_input until backward_weights it holds, in place
// of qkv, inner and S, 4 M of d_norm1, d_norm2, d_residual and d_y, 3 M of d_qkv and F of d_inner.
// In 3d the last four are gathered rows in place of blocks, l (M + M + 3 M + F).
//
// The head keeps 2 M + R + H with its input, and until backward_input 2 r A.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/models/gpt_memory.h"

namespace layers::grids {

std::int64_t stage_parameters_count(const GptConfig& config, const StageCase& stage);
Shape boundary_shape(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> forward_calls(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> backward_input_calls(const GptConfig& config, const StageCase& stage);
std::vector<CollectiveCalls> backward_weights_calls(const GptConfig& config,
                                                    const StageCase& stage);
ContextMessages forward_messages(const GptConfig& config, const StageCase& stage);
ContextMessages backward_input_messages(const GptConfig& config, const StageCase& stage);
ContextMessages backward_weights_messages(const GptConfig& config, const StageCase& stage);
StageMemory stage_memory(const GptConfig& config, const StageCase& stage);
// Returns the bytes of buffers for the whole training: the positions of the embedding's rows,
// int32.
std::size_t stage_state(const GptConfig& config, const StageCase& stage);

}  // namespace layers::grids
