// Claim: attention over the present blocks of a layout (Child et al. 2019, arXiv:1904.10509; the
// patterns of DeepSpeed's `sparse_attention`: layers/sparse/sparse_layout.h), with its heads
// sharded over tp, equals the layer whose queries see the keys of these blocks. It computes the
// scores of present blocks and no others. Volume and memory are those of blockwise attention, so no
// memory grows with the square of the sequence (suite/layers/self_attention.cpp). Selective
// recomputation gives the same bits.
//
// The reference is plain loops in double over all pairs
// (suite/reference/attention/masked_attention.h). Its mask is a rule for one pair of blocks
// (suite/reference/attention/sparse_rule.h). Only the random blocks of `variable` and `bigbird` are
// the layout's own.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "harness/judge/numerics.h"
#include "layers/attention/attention.h"
#include "layers/sparse/sparse_layout.h"
#include "machine/device/sparse/sparse_attention.h"
#include "suite/layers/core_attention.h"
#include "suite/layers/layer_unit.h"
#include "suite/layers/self_attention.h"
#include "suite/reference/attention/masked_attention.h"
#include "suite/reference/attention/sparse_rule.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

layers::SparseOptions options_of(const LayerCase& c) {
  return {.pattern = {.mode = layers::sparse_mode(c.pattern),
                      .different_layout_per_head = c.different_layout_per_head,
                      .unidirectional = c.attention == "unidirectional",
                      .horizontal_global_attention = c.horizontal_global_attention,
                      .num_local_blocks = c.num_local_blocks,
                      .num_global_blocks = c.num_global_blocks,
                      .num_random_blocks = c.num_random_blocks,
                      .num_sliding_window_blocks = c.num_sliding_window_blocks,
                      .local_window_blocks = {c.num_local_blocks}},
          .block = c.block};
}

layers::GptConfig model_of(const LayerCase& c) {
  layers::GptConfig model = c.model();
  model.sparse = options_of(c);
  return model;
}

layers::SparseLayout layout_of(const LayerCase& c) {
  return layers::sparse_layout(options_of(c).pattern, c.num_attention_heads,
                               c.seq_length / c.block);
}

bool draws_blocks(const LayerCase& c) {
  return (c.pattern == "variable" || c.pattern == "bigbird") && c.num_random_blocks > 0;
}

// The blocks that the claim allows: those of the rule and, for each row, up to num_random_blocks
// more that the layout has drawn.
class ExpectedBlocks {
 public:
  explicit ExpectedBlocks(const LayerCase& c)
      : case_(c),
        rule_{c.pattern,
              c.attention == "unidirectional",
              c.horizontal_global_attention,
              c.seq_length / c.block,
              c.num_local_blocks,
              c.num_global_blocks,
              c.num_sliding_window_blocks},
        drawn_(draws_blocks(c) ? layout_of(c) : layers::SparseLayout()) {}

  bool sees(std::int64_t head, std::int64_t query, std::int64_t key) const {
    const int q = static_cast<int>(query / case_.block), k = static_cast<int>(key / case_.block);
    return (!rule_.unidirectional || key <= query) && has(static_cast<int>(head), q, k);
  }
  // Present blocks of the heads [first, first + count).
  std::int64_t present(int first, int count) const {
    std::int64_t sum = 0;
    each(first, count, [&](int head, int q, int k) { sum += has(head, q, k); });
    return sum;
  }
  // Blocks that were drawn in a row, at most.
  int most_drawn() const {
    std::vector<int> of_row(static_cast<std::size_t>(case_.num_attention_heads * rule_.blocks));
    each(0, case_.num_attention_heads, [&](int head, int q, int k) {
      of_row[static_cast<std::size_t>(head * rule_.blocks + q)] +=
          has(head, q, k) && !rule_.sees(q, k);
    });
    return *std::ranges::max_element(of_row);
  }

 private:
  bool has(int head, int q, int k) const {
    return rule_.sees(q, k) || (drawn_.blocks > 0 && drawn_.at(head, q, k));
  }
  template <class Visit>
  void each(int first, int count, const Visit& visit) const {
    for (int head = first; head < first + count; ++head)
      for (int q = 0; q < rule_.blocks; ++q)
        for (int k = 0; k < rule_.blocks; ++k) visit(head, q, k);
  }

  LayerCase case_;
  SparseRule rule_;
  layers::SparseLayout drawn_;
};

// Scores that one pass computes on a rank.
std::int64_t scores_of(const LayerCase& c, int rank) {
  const int heads = c.num_attention_heads / c.ranks;
  return std::int64_t{c.micro_batch_size} * c.block * c.block *
         ExpectedBlocks(c).present(rank * heads, heads);
}

LayerClaims claims(const LayerCase& c) {
  LayerClaims found = self_attention_claims(c);
  const std::int64_t h = c.hidden_size, s = c.seq_length, b = c.block,
                     heads = c.num_attention_heads;
  double pairs =
      static_cast<double>(ExpectedBlocks(c).present(0, static_cast<int>(heads)) * b * b) /
      static_cast<double>(heads);
  // Queries of a causal block on the diagonal see half of it.
  const std::int64_t later = s / b * (b * (b - 1) / 2);
  if (c.attention == "unidirectional") pairs -= static_cast<double>(later);
  // Two products forward and four backward, of the pairs that are seen.
  found.flops = 6.0 *
                (static_cast<double>(c.tokens() * 4 * h * h) +
                 2.0 * c.micro_batch_size * pairs * static_cast<double>(h)) /
                c.ranks;
  return found;
}

class JudgedSparseAttention final : public JudgedLayer {
 public:
  JudgedSparseAttention(const layers::Context& context, const std::string& name, const LayerCase& c)
      : layer_(context, name, model_of(c)) {}

  layers::Parameters parameters() final { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& y) final {
    counted(scores_of_forward, [&] { layer_.forward(in.x, y, saved_, Category::activations); });
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) final {
    counted(scores_of_backward,
            [&] { layer_.backward_input(d_y, d_x, saved_, Category::buffers); });
  }
  void backward_weights() final { layer_.backward_weights(saved_); }

  // Numbers of the last passes; empty if the device does not count.
  std::optional<std::int64_t> scores_of_forward, scores_of_backward;

 private:
  template <class Pass>
  void counted(std::optional<std::int64_t>& scores, const Pass& pass) {
    const std::optional<std::int64_t> before = layer_.scores();
    pass();
    if (before) scores = *layer_.scores() - *before;
  }

  layers::Attention layer_;
  layers::Attention::Saved saved_;
};

void judge_scores(Judge& judge, const LayerRun& run, const LayerCase& c) {
  const auto& layer = dynamic_cast<const JudgedSparseAttention&>(run.layer());
  const auto expect = [&](std::string_view pass, const std::optional<std::int64_t>& got,
                          int times) {
    if (!got) return;
    const double want = static_cast<double>(times * scores_of(c, run.context().tp.rank()));
    judge.exact(fmt::format("scores computed by {}", pass), std::array{static_cast<double>(*got)},
                std::array{want});
  };
  expect("forward", layer.scores_of_forward, 1);
  expect("backward", layer.scores_of_backward, c.recomputes_core() ? 2 : 1);
}

MaskedAttentionReference reference_of(const Context& context, const LayerRun& run,
                                      const LayerCase& c) {
  const std::uint64_t seed = run.seed();
  const std::int64_t h = c.hidden_size;
  const double stddev = weight_stddev(h);
  const auto parameter = [&](std::size_t i, double deviation) {
    const collectives::Parameter& p = *run.parameters()[i];
    return whole_values(context, c.dtype, p.global_shape, layers::random_key(seed, p.name),
                        deviation);
  };
  const auto rows = [&](std::uint64_t which) {
    return whole_values(context, c.dtype, {c.tokens(), h}, seed + which, 1);
  };
  const ExpectedBlocks blocks(c);
  return masked_attention(
      {c.micro_batch_size, c.seq_length, c.num_attention_heads, h / c.num_attention_heads},
      {rows(seed_x), rows(seed_d_y), parameter(0, stddev), parameter(1, 0.5), parameter(2, stddev),
       parameter(3, 0.5)},
      [&](std::int64_t head, std::int64_t query, std::int64_t key) {
        return blocks.sees(head, query, key);
      },
      [&] { context.world.board().mine().progress.fetch_add(1); });  // this rank does not hang
}

// The first rank computes the reference and sends it. The bound is that of one layer, for both runs
// (harness/judge/numerics.h).
void judge_numerics(Judge& judge, const Context& context, const LayerRun& run, const LayerCase& c) {
  judge_scores(judge, run, c);
  if (draws_blocks(c)) {
    judge.shares_reference(Oracle::numerics);
    judge.numerics("random blocks of a row beyond num_random_blocks",
                   std::max(0, ExpectedBlocks(c).most_drawn() - c.num_random_blocks), 0);
  }
  const layers::Context& of_run = run.context();
  const int rank = of_run.tp.rank();
  MaskedAttentionReference want;
  if (rank == 0) want = reference_of(context, run, c);
  want = context.world.broadcast(context.group, 0, want);
  const double longest = static_cast<double>(
      std::max({std::int64_t{3} * c.hidden_size, std::int64_t{c.seq_length}, c.tokens()}));
  const double bound =
      harness::norm_bound(c.dtype, 1, longest) + harness::norm_bound(Dtype::float64, 1, longest);
  const auto own_rows = [&](const std::vector<double>& whole) {
    if (!c.sequence_parallel) return whole;
    const auto size = static_cast<std::ptrdiff_t>(c.own_rows() * c.hidden_size);
    return std::vector(whole.begin() + rank * size, whole.begin() + (rank + 1) * size);
  };
  const LayerResults got = results_of(run, &judge);
  judge.numerics_norm("y against plain loops", got.y, own_rows(want.y), bound);
  judge.numerics_norm("d_x against plain loops", got.d_x, own_rows(want.d_x), bound);
  const std::vector<double>* const gradients[] = {&want.d_qkv, &want.d_qkv_bias, &want.d_projection,
                                                  &want.d_bias};
  const std::set<std::string> partial = run.partial_gradients();
  const layers::Parameters parameters = run.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const collectives::Parameter& p = *parameters[i];
    std::vector<double> whole = *gradients[i];
    for (int other = 0; other < (partial.contains(p.name) ? c.ranks : 1); ++other) {
      const std::vector<double> earlier =
          earlier_gradient(of_run, run.seed(), p.name, other, p.global_shape, {});
      for (std::size_t j = 0; j < whole.size(); ++j) whole[j] += earlier[j];
    }
    judge.numerics_norm(fmt::format("gradient of {} against plain loops", p.name),
                        got.parameters[i].gradient, shard(whole, p, rank), bound);
  }
}

std::string why_no_layout(const LayerCase& c) {
  for (const auto& [axis, value] : {std::pair("num_local_blocks", c.num_local_blocks),
                                    {"num_global_blocks", c.num_global_blocks},
                                    {"num_sliding_window_blocks", c.num_sliding_window_blocks}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  if (c.seq_length % c.block != 0)
    return fmt::format("seq-length is {}; expected a multiple of block {} (example: {})",
                       c.seq_length, c.block, (c.seq_length / c.block + 1) * c.block);
  try {
    layout_of(c);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

LayerCase blockwise(LayerCase c) {
  c.use_flash_attn = true;
  return c;
}

constexpr LayerTraits traits{
    .name = "sparse_attention",
    .about = "attention over blocks of a sparse layout, with sharded heads: all three passes",
    .claims = claims,
    .make = make_layer<JudgedSparseAttention>,
    .has_heads = true,
    .judge_numerics = judge_numerics};

struct SparseAttention final : LayerShell {
  static constexpr std::string_view name = traits.name, about = traits.about;
  static constexpr Counter counters[] = {
      {"density", "", Better::neither, Nature::exact, "present blocks of a sparse layout, of all"},
      {"computed_density", "", Better::lower, Nature::exact,
       "scores that sparse attention computed in forward, of all pairs"},
      {"sparse_time_over_dense", "", Better::lower, Nature::measured,
       "time of sparse attention over that of blockwise attention"}};
  static Sweep<LayerCase> sweep();
  static std::string why_not(const Case& c, const Context& context) {
    return LayerShell::why_not(blockwise(c), context);
  }

  SparseAttention(const Case& c, Context& context)
      : LayerShell(blockwise(c), context, traits), case_(c), context_(context) {}

  void describe(Description& description);

 private:
  LayerCase case_;
  Context& context_;
};

Sweep<LayerCase> SparseAttention::sweep() {
  using Case = LayerCase;
  using enum Profile;
  const std::vector<Dtype> dtypes{Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64};
  const std::vector<std::string> patterns{"dense",   "fixed",        "variable",
                                          "bigbird", "bslongformer", "local_sliding_window"};
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32, dtypes)
      .axis("ranks", &Case::ranks, 2)
      .axis("sequence-parallel", &Case::sequence_parallel, false)
      .axis("recompute-granularity", &Case::recompute_granularity, "none", {"none", "selective"})
      .axis("pattern", &Case::pattern, "fixed", patterns)
      .axis("block", &Case::block, 16, {16, 32, 64, 128})
      .axis("attention", &Case::attention, "unidirectional", {"unidirectional", "bidirectional"})
      .axis("different_layout_per_head", &Case::different_layout_per_head, false)
      .axis("horizontal_global_attention", &Case::horizontal_global_attention, false)
      .axis("num_local_blocks", &Case::num_local_blocks, 4)
      .axis("num_global_blocks", &Case::num_global_blocks, 1)
      .axis("num_random_blocks", &Case::num_random_blocks, 1)
      .axis("num_sliding_window_blocks", &Case::num_sliding_window_blocks, 3)
      .axis("micro-batch-size", &Case::micro_batch_size, 2)
      .axis("seq-length", &Case::seq_length, 160)
      .axis("hidden-size", &Case::hidden_size, 96)
      .axis("num-attention-heads", &Case::num_attention_heads, 8)
      .only([](const Case& c) {
        const std::string why = why_no_layout(c);
        return why.empty() ? why_no_case(traits, c) : why;
      });
  const auto all = vary(&Case::pattern, patterns),
             two_ways = vary(&Case::attention, {"unidirectional", "bidirectional"}),
             encoder = vary(&Case::attention, {"bidirectional"}),
             bfloat16 = vary(&Case::dtype, {Dtype::bfloat16}),
             own_layouts = vary(&Case::different_layout_per_head, {true}),
             rows = vary(&Case::sequence_parallel, {true}),
             short_rows = vary(&Case::seq_length, {96}), one = vary(&Case::micro_batch_size, {1});
  sweep.slice({quick}, "patterns", {all})
      .slice({quick}, "bidirectional",
             {bfloat16, vary(&Case::ranks, {4}), rows, all, encoder, own_layouts})
      .slice({quick}, "recomputed",
             {vary(&Case::transport, {Transport::mpi}),
              vary(&Case::recompute_granularity, {"selective"}), vary(&Case::block, {32})})
      .slice({acceptance, paper}, "matrix",
             {vary(&Case::dtype, dtypes), vary(&Case::ranks, {1, 2, 4, 8}), all, two_ways})
      .slice({acceptance, paper}, "blocks",
             {vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16}), all,
              vary(&Case::block, {16, 32, 64}), two_ways, vary(&Case::seq_length, {320})})
      .slice(
          {acceptance, paper}, "own rows and layouts",
          {vary(&Case::transport, {Transport::shared_memory, Transport::mpi}),
           vary(&Case::ranks, {2, 4}), rows,
           vary(&Case::recompute_granularity, {"none", "selective"}), all, two_ways, own_layouts})
      .slice({smoke}, "smoke", {all, short_rows, one})
      .slice({smoke}, "smoke",
             {bfloat16, vary(&Case::ranks, {4}), rows,
              vary(&Case::recompute_granularity, {"selective"}),
              vary(&Case::pattern, {"fixed", "bigbird"}), encoder, own_layouts,
              vary(&Case::horizontal_global_attention, {true}), short_rows, one})
      .slice(
          {smoke}, "smoke",
          {vary(&Case::dtype, {Dtype::float64}), vary(&Case::ranks, {1}), vary(&Case::block, {64}),
           vary(&Case::num_local_blocks, {1}), vary(&Case::seq_length, {192}), one});
  return sweep;
}

// Times the core attention of this rank's heads: dense and sparse in turn, forward and backward.
void SparseAttention::describe(Description& description) {
  LayerShell::describe(description);
  const layers::SparseLayout layout = layout_of(case_);
  description.set("density", layout.density());
  machine::Device& device = context_.device;
  const std::int64_t heads = case_.num_attention_heads / case_.ranks,
                     head = case_.hidden_size / case_.num_attention_heads, s = case_.seq_length;
  machine::SparseAttention sparse(
      device, {heads, layout.blocks, case_.block,
               std::span(layout.present).first(layout.index(static_cast<int>(heads), 0, 0))});
  const CoreAttention core(
      device, case_.dtype,
      {case_.micro_batch_size, s, heads, heads, head, case_.attention == "unidirectional"});
  const auto dense = [&] {
    core.forward();
    core.backward();
  };
  const auto of_blocks = [&] {
    const machine::AttentionBackward& b = core.call();
    const machine::AttentionForward& f = b.forward;
    sparse.forward(f.q, f.k, f.v, f.options, f.out, f.log_sum_exp);
    sparse.backward(f.q, f.k, f.v, f.options, f.out, f.log_sum_exp, b.d_out, b.d_q, b.d_k, b.d_v);
  };
  description.set("sparse_time_over_dense", core.time_over(of_blocks, dense));
  if (const auto scores = sparse.scores())  // of five runs with two passes
    description.set("computed_density", static_cast<double>(*scores) / 10 /
                                            static_cast<double>(case_.tokens() * heads * s));
}

const bool registered = harness::add<SparseAttention>();

}  // namespace
}  // namespace suite
