#include "suite/layers/layer_case.h"

#include <fmt/format.h>

#include <algorithm>

namespace suite {
namespace {

// Returns why `by` does not divide the value, with the nearest multiple, or empty.
std::string not_divided(std::string_view what, std::int64_t value, std::string_view by_what,
                        std::int64_t by) {
  if (value % by == 0) return {};
  return fmt::format("{} is {}; expected a multiple of {} {} (example: {})", what, value, by_what,
                     by, std::max<std::int64_t>(1, (value + by / 2) / by) * by);
}

}  // namespace

std::string why_no_case(const LayerTraits& traits, const LayerCase& c) {
  for (const auto& [axis, value] : {std::pair("micro-batch-size", c.micro_batch_size),
                                    {"seq-length", c.seq_length},
                                    {"hidden-size", c.hidden_size},
                                    {"num-attention-heads", c.num_attention_heads},
                                    {"vocab-size", c.vocab_size}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  std::string why;
  if (traits.has_heads)
    why = not_divided("hidden-size", c.hidden_size, "num-attention-heads", c.num_attention_heads);
  if (why.empty() && traits.has_heads && c.model().rotary())
    why = not_divided("a head of hidden-size / num-attention-heads", c.model().head(),
                      "the rotated halves,", 2);
  if (!why.empty()) return why;
  for (const auto& [what, value] : traits.claims(c).cut)
    if (why = not_divided(what, value, "ranks", c.ranks); !why.empty()) return why;
  if (c.tp_comm_overlap && c.ranks == 1) return "tp-comm-overlap requires ranks 2 or more (got 1)";
  if (!c.sequence_parallel) return {};
  if (c.ranks == 1) return "sequence-parallel requires ranks 2 or more (got 1)";
  return not_divided("sequence-parallel: micro-batch-size x seq-length", c.tokens(), "ranks",
                     c.ranks);
}

LayerCase LayerCase::whole() const {
  LayerCase alone = *this;
  alone.ranks = 1;
  alone.sequence_parallel = alone.tp_comm_overlap = false;
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
  if (attention == "bidirectional") model.architecture = layers::Architecture::encoder;
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

std::array<std::vector<collectives::CollectiveCalls>, 3> calls_of_two_products(const LayerCase& c) {
  const int again = c.joins_halves() ? 1 : 0;
  return {calls(c, {.inward = 1, .outward = 1}), calls(c, {.inward = 1 + again, .outward = 1}),
          calls(c, {.inward = 1 - again})};
}

Sweep<LayerCase> layer_sweep(const LayerTraits& traits) {
  using Case = LayerCase;
  using Variations = std::vector<harness::Variation>;
  using enum Profile;
  if (traits.sweep) return traits.sweep();
  const std::vector<Dtype> dtypes{Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64};
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32, dtypes)
      .axis("ranks", &Case::ranks, 2)
      .axis("sequence-parallel", &Case::sequence_parallel, false);
  if (traits.has_products) sweep.axis("tp-comm-overlap", &Case::tp_comm_overlap, false);
  if (traits.has_architecture)
    sweep.axis("architecture", &Case::architecture, "gpt2", {"gpt2", "llama"});
  if (traits.has_heads)
    sweep.axis("recompute-granularity", &Case::recompute_granularity, "none", {"none", "selective"})
        .axis("use-flash-attn", &Case::use_flash_attn, false);
  sweep.axis("micro-batch-size", &Case::micro_batch_size, 2)
      .axis("seq-length", &Case::seq_length, 20)
      .axis("hidden-size", &Case::hidden_size, 96);
  if (traits.has_heads) sweep.axis("num-attention-heads", &Case::num_attention_heads, 8);
  if (traits.has_vocabulary) sweep.axis("vocab-size", &Case::vocab_size, 360);
  sweep.only([traits](const Case& c) { return why_no_case(traits, c); });

  // of_some: the axes that only some layers have.
  const auto slice = [&](Profile profile, const char* name, Variations variations,
                         std::initializer_list<Variations> of_some) {
    for (const Variations& more : of_some)
      variations.insert(variations.end(), more.begin(), more.end());
    std::vector<Profile> profiles{profile};
    if (profile == acceptance) profiles.push_back(paper);
    sweep.slice(profiles, name, variations);
  };
  Variations llama, shapes, again, six_heads;
  if (traits.has_architecture) {
    llama = {vary(&Case::architecture, {"llama"})};
    shapes = {vary(&Case::architecture, {"gpt2", "llama"})};
  }
  if (traits.has_heads) {
    again = {vary(&Case::recompute_granularity, {"selective"})};
    shapes.push_back(vary(&Case::recompute_granularity, {"none", "selective"}));
    shapes.push_back(vary(&Case::use_flash_attn, {false, true}));
    six_heads = {vary(&Case::num_attention_heads, {6})};  // three ranks divide six heads, not eight
  }
  const auto matrix = [&](const char* name, std::vector<Transport> transports,
                          std::vector<int> ranks, const Variations& heads) {
    slice(acceptance, name,
          {vary(&Case::transport, std::move(transports)), vary(&Case::dtype, dtypes),
           vary(&Case::ranks, std::move(ranks)), vary(&Case::sequence_parallel, {false, true}),
           vary(&Case::micro_batch_size, {1, 2}), vary(&Case::seq_length, {20, 24})},
          {shapes, heads});
  };
  matrix("one rank", {Transport::shared_memory}, {1}, {});
  matrix("matrix", {Transport::shared_memory, Transport::mpi}, {2, 4, 8}, {});
  matrix("three ranks", {Transport::shared_memory, Transport::mpi}, {3}, six_heads);

  if (traits.has_products) {
    const auto overlap = vary(&Case::tp_comm_overlap, {true}),
               rows = vary(&Case::sequence_parallel, {false, true});
    slice(acceptance, "overlap",
          {vary(&Case::transport, {Transport::shared_memory, Transport::mpi}),
           vary(&Case::dtype, dtypes), vary(&Case::ranks, {2, 4, 8}), rows, overlap},
          {shapes});
    slice(quick, "overlap", {vary(&Case::ranks, {4}), rows, overlap}, {llama});
    slice(smoke, "overlap",
          {vary(&Case::ranks, {2, 4}), rows, overlap, vary(&Case::seq_length, {6})}, {});
    slice(smoke, "overlap, edges",
          {vary(&Case::ranks, {3}), vary(&Case::sequence_parallel, {true}), overlap,
           vary(&Case::micro_batch_size, {1}), vary(&Case::seq_length, {3})},
          {six_heads});
  }

  // Covers each way to keep activations once. Llama's shape runs with four ranks and with blockwise
  // attention.
  slice(quick, "whole rows", {}, {});
  slice(quick, "four ranks", {vary(&Case::ranks, {4}), vary(&Case::sequence_parallel, {true})},
        {llama, again});
  if (traits.has_heads) {
    slice(quick, "blockwise, recomputed", {vary(&Case::use_flash_attn, {true})}, {again});
    slice(smoke, "blockwise, recomputed",
          {vary(&Case::ranks, {2}), vary(&Case::use_flash_attn, {true})}, {again});
    slice(quick, "blockwise",
          {vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::use_flash_attn, {true})}, {llama});
  }
  // Covers ranks whose rows begin and end within a sequence, and ranks with one row.
  for (const auto& [transport, rows, length, dtype] :
       {std::tuple(Transport::mpi, 2, 21, Dtype::bfloat16),
        {Transport::shared_memory, 1, 3, Dtype::float32}})
    slice(quick, "edges",
          {vary(&Case::transport, {transport}), vary(&Case::dtype, {dtype}),
           vary(&Case::ranks, {3}), vary(&Case::sequence_parallel, {true}),
           vary(&Case::micro_batch_size, {rows}), vary(&Case::seq_length, {length})},
          {six_heads});
  const auto small = [&](std::vector<int> ranks, std::vector<Dtype> of, std::vector<bool> rows_cut,
                         int length, const Variations& heads) {
    slice(smoke, "smoke",
          {vary(&Case::dtype, std::move(of)), vary(&Case::ranks, std::move(ranks)),
           vary(&Case::sequence_parallel, std::move(rows_cut)), vary(&Case::seq_length, {length})},
          {shapes, heads});
  };
  small({1, 2}, {Dtype::bfloat16}, {false, true}, 10, {});
  small({3}, {Dtype::float32}, {true}, 12, six_heads);
  small({4}, {Dtype::float16, Dtype::float64}, {true}, 10, {});
  return sweep;
}

}  // namespace suite
