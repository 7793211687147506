#include "suite/layers/layer_case.h"

namespace suite {

LayerCase LayerCase::whole() const {
  LayerCase alone = *this;
  alone.ranks = 1;
  alone.sequence_parallel = false;
  alone.recompute_granularity = "none";
  alone.use_flash_attn = false;
  return alone;
}

layers::GptConfig LayerCase::model() const {
  layers::GptConfig model{.layers = 3,
                          .hidden = hidden_size,
                          .heads = num_attention_heads,
                          .vocabulary = vocab_size,
                          .sequence = seq_length};
  if (architecture == "gpt2") return model;
  model.normalization = layers::Normalization::rms_norm;
  model.swiglu = true;
  model.ffn_hidden_size = 3 * hidden_size;
  model.position_embedding_type = layers::PositionEmbedding::rope;
  model.group_query_attention = true;
  model.num_query_groups =
      num_attention_heads % 2 == 0 ? num_attention_heads / 2 : num_attention_heads;
  model.disable_bias_linear = true;
  model.untie_embeddings_and_output_weights = true;
  return model;
}

LayerSizes::LayerSizes(const LayerCase& one)
    : n(static_cast<std::size_t>(one.tokens())),
      h(static_cast<std::size_t>(one.hidden_size)),
      t(static_cast<std::size_t>(one.ranks)),
      c(one.sequence_parallel ? t : 1),
      E(size_of(one.dtype)),
      A(one.dtype == Dtype::float64 ? 8 : 4),
      M(E * n * h),
      own(M / c),
      gathered(one.sequence_parallel ? M : 0),
      R((one.architecture == "gpt2" ? 2 : 1) * n / c * A) {}

std::string_view name(Pass pass) {
  constexpr std::string_view names[] = {"forward", "backward_input", "backward_weights"};
  return names[static_cast<std::size_t>(pass)];
}

LayerEnds hidden_ends(const LayerCase& c) {
  return {c.hidden_size, c.hidden_size, c.hidden_size, c.hidden_size};
}

std::vector<collectives::CollectiveCalls> calls(const LayerCase& c, Borders borders) {
  if (c.ranks == 1) return {};
  const std::int64_t n = c.tokens(), all = n * c.hidden_size;
  const Dtype accumulator = c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const bool rows_cut = c.sequence_parallel;
  std::vector<collectives::CollectiveCalls> found{
      {"tp", Operation::all_gather, c.dtype, c.ranks, all, rows_cut ? borders.inward : 0},
      {"tp", rows_cut ? Operation::reduce_scatter : Operation::all_reduce, c.dtype, c.ranks, all,
       borders.outward},
      {"tp", Operation::all_reduce, accumulator, c.ranks, n, borders.row_values}};
  std::erase_if(found, [](const auto& one) { return one.calls == 0; });
  return found;
}

}  // namespace suite
