#include "suite/layers/layer_sweep.h"

#include <fmt/format.h>

#include <algorithm>

namespace suite {
namespace {

using harness::Profile;
using machine::Dtype;
using machine::Transport;

// Empty, or why `by` does not divide the value, and the nearest that it does.
std::string not_divided(std::string_view what, std::int64_t value, std::string_view by_what,
                        std::int64_t by) {
  if (value % by == 0) return {};
  return fmt::format("{} is {}, which {} {} does not divide; the nearest that it does is {}", what,
                     value, by_what, by, std::max<std::int64_t>(1, (value + by / 2) / by) * by);
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
                      "the two halves that rope turns:", 2);
  if (!why.empty()) return why;
  for (const auto& [what, value] : claims(c).cut)
    if (why = not_divided(what, value, "ranks", c.ranks); !why.empty()) return why;
  if (c.use_flash_attn != 0 && c.recomputes_core())
    return "recompute-granularity selective: with use-flash-attn there are no probabilities to "
           "make again";
  if (c.sequence_parallel == 0) return {};
  if (c.ranks == 1)
    return "sequence-parallel: there is none without tensor parallelism; ranks is 1, the nearest "
           "that has one is 2";
  return not_divided("sequence-parallel: micro-batch-size x seq-length", c.tokens(), "ranks",
                     c.ranks);
}

// Each dtype, transport and way to hold activations once; Llama's shape where the ranks are most
// and where attention is blockwise.
bool in_quick(const LayerTraits& traits, const LayerCase& c) {
  const bool llamas = c.architecture == "llama";
  if (traits.has_architecture && llamas != (c.ranks == 4 || c.use_flash_attn == 1)) return false;
  if (c.seq_length != 20 || c.micro_batch_size != 2 || c.num_attention_heads == 6) return false;
  const bool shared = c.transport == Transport::shared_memory, rows_cut = c.sequence_parallel == 1,
             again = c.recomputes_core();
  if (c.ranks == 4)
    return c.use_flash_attn == 0 && c.dtype == Dtype::float32 && shared && rows_cut &&
           again == traits.has_heads;
  if (c.use_flash_attn == 1) return c.dtype == Dtype::bfloat16 && shared && !rows_cut && !again;
  if (again) return false;
  if (c.dtype == Dtype::bfloat16) return shared && rows_cut;
  return shared != rows_cut;
}

}  // namespace

harness::Sweep<LayerCase> layer_sweep(const LayerTraits& traits,
                                      LayerClaims (*claims)(const LayerCase&), Profile profile) {
  const bool quick = profile == Profile::quick;
  harness::Sweep<LayerCase> sweep;
  sweep.axis("transport", &LayerCase::transport, {Transport::shared_memory, Transport::mpi})
      .axis("dtype", &LayerCase::dtype,
            quick ? std::vector{Dtype::float32, Dtype::bfloat16}
                  : std::vector{Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64},
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &LayerCase::ranks, quick ? std::vector{2, 4} : std::vector{1, 2, 3, 4, 8})
      .axis("sequence-parallel", &LayerCase::sequence_parallel, {0, 1}, {0, 1})
      .usual("sequence-parallel", "0");
  if (traits.has_architecture)
    sweep.axis("architecture", &LayerCase::architecture, {"gpt2", "llama"}, {"gpt2", "llama"})
        .usual("architecture", "gpt2");
  if (traits.has_heads)
    sweep
        .axis("recompute-granularity", &LayerCase::recompute_granularity, {"none", "selective"},
              {"none", "selective"})
        .usual("recompute-granularity", "none")
        .axis("use-flash-attn", &LayerCase::use_flash_attn, {0, 1}, {0, 1})
        .usual("use-flash-attn", "0");
  sweep.axis("micro-batch-size", &LayerCase::micro_batch_size, {1, 2})
      .usual("micro-batch-size", "2")
      .axis("seq-length", &LayerCase::seq_length, {20, 24})
      .usual("seq-length", "20")
      .axis("hidden-size", &LayerCase::hidden_size, {96});
  if (traits.has_heads) sweep.axis("num-attention-heads", &LayerCase::num_attention_heads, {8, 6});
  if (traits.has_vocabulary) sweep.axis("vocab-size", &LayerCase::vocab_size, {360});
  sweep.only([traits, claims](const LayerCase& c) { return why_no_case(traits, claims, c); });
  if (quick) sweep.sample([traits](const LayerCase& c) { return in_quick(traits, c); });
  // Six heads are for the degree that does not divide eight.
  sweep.sample([traits](const LayerCase& c) {
    return !traits.has_heads || (c.num_attention_heads == 6) == (c.ranks == 3);
  });
  return sweep;
}

}  // namespace suite
