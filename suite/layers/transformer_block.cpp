// Claim: a transformer block sharded over tp gives the whole block's result, with two all-reduces
// forward and two backward (with sequence parallelism two all-gathers and two reduce-scatters each,
// and two all-gathers for the weights). It keeps the tensors of layers/models/gpt_memory.h (Shoeybi
// et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, sections 4
// and 5).
#include "layers/models/transformer_block.h"

#include <algorithm>

#include "layers/models/gpt_memory.h"
#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

// Returns the claims for the middle of three stages with a layer each: a block without embedding
// and head.
LayerClaims claims(const LayerCase& c) {
  const layers::GptConfig model = c.model();
  const layers::StageCase middle{
      .tp = c.ranks,
      .stage = {1, 3},
      .sequences = c.micro_batch_size,
      .dtype = c.dtype,
      .options = {.sequence_parallel = c.sequence_parallel,
                  .recompute_granularity = layers::recompute_granularity(c.recompute_granularity),
                  .use_flash_attn = c.use_flash_attn,
                  .tp_comm = {.enabled = c.tp_comm_overlap}}};
  const layers::StageMemory memory = layers::stage_memory(model, middle);
  const LayerSizes z(c);
  const bool gated = model.swiglu;
  const std::int64_t h = c.hidden_size, f = model.ffn(), qkv = model.qkv();
  const std::int64_t weights = h * (qkv + h) + (gated ? 3 : 2) * f * h;
  auto input = layers::backward_input_calls(model, middle),
       of_weights = layers::backward_weights_calls(model, middle);
  if (c.joins_halves()) {
    input.insert(input.end(), of_weights.begin(), of_weights.end());
    of_weights.clear();
  }
  return {
      .cut = {{"num-attention-heads", c.num_attention_heads},
              {"num-query-groups", model.query_groups()},
              {gated ? "3 x hidden-size" : "4 x hidden-size", f}},
      .parameters = layers::stage_parameters_count(model, middle),
      .calls = {layers::forward_calls(model, middle), input, of_weights},
      .saved = memory.saved,
      // The inputs of the matrices and of the norms, and the statistics of the norms. With
      // tp-comm-overlap the gradients of the first matrices are done.
      .saved_for_weights = (c.joins_halves() ? 1 : 3) * z.own + z.columns(h + f) + 2 * z.R,
      .buffers = std::max(memory.forward_buffers, memory.backward_buffers),
      .flops = 3.0 * 2 * static_cast<double>(c.tokens() * (weights + c.seq_length * h)) / c.ranks,
      .longest_sum = std::max<std::int64_t>(gated ? 2 * f : f, c.tokens()),
  };
}

constexpr LayerTraits traits{
    .name = "transformer_block",
    .about = "two norms, attention, perceptron and residual sums: all three passes",
    .claims = claims,
    .make = make_layer<SavingLayer<layers::TransformerBlock>>,
    .has_heads = true,
    .has_architecture = true,
    .has_products = true};
const bool registered = harness::add<LayerUnit<traits>>();

}  // namespace
}  // namespace suite
