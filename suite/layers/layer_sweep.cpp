#include <fmt/format.h>

#include <algorithm>

#include "suite/layers/layer_case.h"

namespace suite {
namespace {

// Returns why `by` does not divide the value, with the nearest multiple, or empty.
std::string not_divided(std::string_view what, std::int64_t value, std::string_view by_what,
                        std::int64_t by) {
  if (value % by == 0) return {};
  return fmt::format("{} is {}; expected a multiple of {} {} (example: {})", what, value, by_what,
                     by, std::max<std::int64_t>(1, (value + by / 2) / by) * by);
}

std::string why_no_case(const LayerTraits& traits, LayerClaims (*claims)(const LayerCase&),
                        const LayerCase& c) {
  for (const auto& [axis, value] : {std::pair("micro-batch-size", c.micro_batch_size),
                                    {"seq-length", c.seq_length},
                                    {"hidden-size", c.hidden_size},
                                    {"num-attention-heads", c.num_attention_heads},
                                    {"vocab-size", c.vocab_size}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{}: {} is not at least 1", axis, value));
  std::string why;
  if (traits.has_heads)
    why = not_divided("hidden-size", c.hidden_size, "num-attention-heads", c.num_attention_heads);
  if (why.empty() && traits.has_heads && c.model().rotary())
    why = not_divided("a head of hidden-size / num-attention-heads", c.model().head(),
                      "the rotated halves,", 2);
  if (!why.empty()) return why;
  for (const auto& [what, value] : claims(c).cut)
    if (why = not_divided(what, value, "ranks", c.ranks); !why.empty()) return why;
  if (c.use_flash_attn && c.recomputes_core())
    return "recompute-granularity selective does not support use-flash-attn, which keeps no "
           "probabilities";
  if (!c.sequence_parallel) return {};
  if (c.ranks == 1) return "sequence-parallel requires ranks 2 or more (got 1)";
  return not_divided("sequence-parallel: micro-batch-size x seq-length", c.tokens(), "ranks",
                     c.ranks);
}

}  // namespace

Sweep<LayerCase> layer_sweep(const LayerTraits& traits, LayerClaims (*claims)(const LayerCase&)) {
  using Case = LayerCase;
  using Variations = std::vector<harness::Variation<Case>>;
  using enum Profile;
  const std::vector<Dtype> dtypes{Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64};
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32, dtypes)
      .axis("ranks", &Case::ranks, 2)
      .axis("sequence-parallel", &Case::sequence_parallel, false);
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
  sweep.only([traits, claims](const Case& c) { return why_no_case(traits, claims, c); });

  const auto joined = [](Variations all, const Variations& more) {
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  Variations llama, shapes, again, six_heads;
  if (traits.has_architecture) {
    llama = {vary(&Case::architecture, {"llama"})};
    shapes = {vary(&Case::architecture, {"gpt2", "llama"})};
  }
  if (traits.has_heads) {
    again = {vary(&Case::recompute_granularity, {"selective"})};
    shapes = joined(shapes, {vary(&Case::recompute_granularity, {"none", "selective"}),
                             vary(&Case::use_flash_attn, {false, true})});
    six_heads = {vary(&Case::num_attention_heads, {6})};  // for a degree that does not divide eight
  }
  const auto matrix = [&](const char* name, std::vector<Transport> transports,
                          std::vector<int> ranks, const Variations& heads) {
    sweep.slice(
        {acceptance, paper}, name,
        joined(joined({vary(&Case::transport, std::move(transports)), vary(&Case::dtype, dtypes),
                       vary(&Case::ranks, std::move(ranks)),
                       vary(&Case::sequence_parallel, {false, true}),
                       vary(&Case::micro_batch_size, {1, 2}), vary(&Case::seq_length, {20, 24})},
                      shapes),
               heads));
  };
  matrix("one rank", {Transport::shared_memory}, {1}, {});
  matrix("matrix", {Transport::shared_memory, Transport::mpi}, {2, 4, 8}, {});
  matrix("three ranks", {Transport::shared_memory, Transport::mpi}, {3}, six_heads);

  // Each way to hold activations once; Llama's shape where the ranks are most and where attention
  // is blockwise.
  sweep.slice({quick}, "whole rows")
      .slice(
          {quick}, "four ranks",
          joined(joined({vary(&Case::ranks, {4}), vary(&Case::sequence_parallel, {true})}, llama),
                 again));
  if (traits.has_heads)
    sweep.slice({quick}, "blockwise",
                joined({vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::use_flash_attn, {true})},
                       llama));
  // Rows of a rank that begin and end within a sequence; one row of a rank.
  for (const auto& [transport, rows, length, dtype] :
       {std::tuple(Transport::mpi, 2, 21, Dtype::bfloat16),
        {Transport::shared_memory, 1, 3, Dtype::float32}})
    sweep.slice({quick}, "edges",
                joined({vary(&Case::transport, {transport}), vary(&Case::dtype, {dtype}),
                        vary(&Case::ranks, {3}), vary(&Case::sequence_parallel, {true}),
                        vary(&Case::micro_batch_size, {rows}), vary(&Case::seq_length, {length})},
                       six_heads));
  const auto small = [&](std::vector<int> ranks, std::vector<Dtype> of, std::vector<bool> rows_cut,
                         int length, const Variations& heads) {
    sweep.slice(
        {smoke}, "smoke",
        joined(joined({vary(&Case::dtype, std::move(of)), vary(&Case::ranks, std::move(ranks)),
                       vary(&Case::sequence_parallel, std::move(rows_cut)),
                       vary(&Case::seq_length, {length})},
                      shapes),
               heads));
  };
  small({1, 2}, {Dtype::bfloat16}, {false, true}, 10, {});
  small({3}, {Dtype::float32}, {true}, 12, six_heads);
  small({4}, {Dtype::float16, Dtype::float64}, {true}, 10, {});
  return sweep;
}

}  // namespace suite
