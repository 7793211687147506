// Claim: causal self-attention with its heads sharded over tp gives the whole layer's result. It
// sends the volume of the perceptron. It keeps qkv, the probabilities and the context of its own
// heads. Selective recomputation keeps no probabilities and gives the same bits. Blockwise
// attention has no probabilities. With grouped queries keys and values have fewer heads (Ainslie et
// al. 2023, arXiv:2305.13245; Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al.
// 2022, arXiv:2205.05198, sections 4 and 5).

#include "suite/layers/self_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "layers/attention/attention.h"
#include "machine/device/cudnn/cudnn_attention.h"
#include "suite/layers/core_attention.h"
#include "suite/layers/layer_unit.h"
#include "suite/reference/whole_values.h"

namespace suite {

LayerClaims self_attention_claims(const LayerCase& c) {
  const LayerSizes z(c);
  const layers::GptConfig model = c.model();
  const std::int64_t h = c.hidden_size, t = c.ranks, s = c.seq_length;
  const std::int64_t groups = model.query_groups(), in_group = model.heads / groups;
  const std::int64_t qkv_columns = h + 2 * groups * (h / model.heads);
  const std::size_t part = z.M / z.t, qkv = z.columns(qkv_columns);
  // Probabilities: sequences * heads / tp squares of [sequence, sequence] for this rank's heads.
  // Blockwise attention keeps one number for each of their rows instead.
  const std::size_t rows = z.n * static_cast<std::size_t>(c.num_attention_heads) / z.t;
  const bool blockwise = c.use_flash_attn;
  const std::size_t P = blockwise ? 0 : z.E * rows * static_cast<std::size_t>(s);
  const std::size_t again = c.recomputes_core() ? P : 0;
  const std::size_t rows_again = blockwise && c.recomputes_core() ? rows * z.A : 0;
  const std::int64_t biases = model.disable_bias_linear ? 0 : qkv_columns / t + h;
  return {
      .cut = {{"num-attention-heads", c.num_attention_heads}, {"num-query-groups", groups}},
      .parameters = h * (qkv_columns + h) / t + biases,
      .calls = calls_of_two_products(c),
      .saved = qkv + part + (P - again) + (blockwise && !c.recomputes_core() ? rows * z.A : 0),
      .saved_for_weights = part,
      // Forward holds the scores, and the probabilities if they are recomputed. Backward keeps
      // d_qkv and d_y of all rows until it ends. It frees d_context, d_scores and recomputed
      // probabilities before it allocates x or d_x of all rows. With tp-comm-overlap it holds both
      // at once.
      .buffers = std::max(
          {z.gathered, P + again, rows_again,
           qkv + z.gathered + std::max(part + P + again + rows_again, z.rows_of_first(c))}),
      // Megatron-LM counts the causal half of core attention.
      .flops = 3.0 * 2 * static_cast<double>(c.tokens() * (h * (qkv_columns + h) + s * h)) /
               static_cast<double>(t),
      .longest_sum = std::max({qkv_columns, in_group * s, c.tokens()}),
  };
}

namespace {

constexpr LayerTraits traits{.name = "self_attention",
                             .about = "causal attention with sharded heads: all three passes",
                             .claims = self_attention_claims,
                             .make = make_layer<SavingLayer<layers::Attention>>,
                             .has_heads = true,
                             .has_architecture = true,
                             .has_products = true};

struct SelfAttention final : LayerUnit<traits> {
  static constexpr Counter counters[] = {
      {"forward_time_over_cudnn", "", Better::lower, Nature::measured,
       "time of blockwise attention over that of cuDNN's, forward"},
      {"backward_time_over_cudnn", "", Better::lower, Nature::measured,
       "time of blockwise attention over that of cuDNN's, backward"}};

  SelfAttention(const LayerCase& c, Context& context)
      : LayerUnit(c, context), case_(c), context_(context) {}

  void describe(Description& description) {
    LayerUnit::describe(description);
    if (case_.use_flash_attn && context_.device.kind() == machine::Device::Kind::cuda &&
        !machine::cuda::is_virtual())
      compare_with_cudnn(description);
  }

 private:
  // Times the core attention of this rank's heads by both.
  void compare_with_cudnn(Description& description) const {
    const layers::GptConfig model = case_.model();
    const std::int64_t ranks = case_.ranks;
    const CoreAttention core(context_.device, case_.dtype,
                             {case_.micro_batch_size, case_.seq_length, model.heads / ranks,
                              model.query_groups() / ranks, model.head(), true});
    const machine::CudnnAttention theirs = machine::cudnn_attention(core.stream(), core.call());
    if (!theirs.why_not.empty()) {
      description.note = theirs.why_not;
      return;
    }
    core.forward();
    const std::vector<double> ours = to_doubles(core.out());
    theirs.forward();
    const double difference = distance(ours, to_doubles(core.out())) / norm(ours);
    if (!(difference < 0.01)) {
      description.note =
          fmt::format("cuDNN's attention is not timed: its result is {:.2g} from ours", difference);
      return;
    }
    description.set("forward_time_over_cudnn",
                    core.time_over([&] { core.forward(); }, theirs.forward));
    description.set("backward_time_over_cudnn",
                    core.time_over([&] { core.backward(); }, theirs.backward));
  }

  LayerCase case_;
  Context& context_;
};

const bool registered = harness::add<SelfAttention>();

}  // namespace
}  // namespace suite
