// Claim: self-attention over a grid of ranks gives the whole attention's output and gradients. A
// rank has whole sequences and whole heads between the two products, so only the products
// communicate (Xu et al. 2021, arXiv:2104.05343; Wang et al. 2021, arXiv:2105.14500;
// Bian et al. 2021, arXiv:2105.14450). It keeps 1/p of the queries, keys, values and outputs.
//
// The reference is attention of whole sequences (attention_reference.h) between products in double
// by plain loops (product_reference.h).
#include "layers/tensor_grids/grid_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "harness/judge/numerics.h"
#include "machine/device/flash_attention.h"
#include "suite/layers/tensor_grids/grid_unit.h"
#include "suite/reference/attention/attention_reference.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using layers::GridBlock, layers::PairPlace;

layers::GridAttentionSizes sizes_of(const GridCase& c) {
  return {c.micro_batch_size, c.seq_length, c.input_size, c.num_attention_heads};
}

class JudgedGridAttention final : public JudgedGridLayer {
 public:
  JudgedGridAttention(const layers::GridContext& context, const GridCase& c)
      : layer_(context, "grid_attention", sizes_of(c)) {}

  layers::GridParameters parameters() override { return layer_.parameters(); }
  GridBlock input() const override { return layer_.input(); }
  GridBlock output() const override { return layer_.output(); }
  void forward(const Tensor& x, const Tensor& y) override {
    layer_.forward(x, y, saved_, Category::activations);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) override {
    layer_.backward_input(d_y, d_x, saved_, Category::buffers);
  }
  void backward_weights() override { layer_.backward_weights(saved_); }

 private:
  layers::GridAttention layer_;
  layers::GridAttention::Saved saved_;
};

GridClaims claims(const GridCase& c, int rank) {
  const std::int64_t n = c.tokens, h = c.input_size;
  GridClaims claims = claims_of_pair(c, rank, h, 3 * h, h, h);
  const auto attended = static_cast<std::size_t>(n * h / c.ranks) * size_of(c.dtype);
  const auto logarithms = static_cast<std::size_t>(n * c.num_attention_heads / c.ranks) *
                          size_of(collectives::gradient_dtype(c.dtype));
  claims.saved = 4 * attended + logarithms;  // queries, keys and values; the attended values
  claims.saved_for_weights = attended;
  // Two products forward and four backward, of all pairs of a query and a key that it sees.
  claims.flops +=
      6.0 * static_cast<double>(n) * (c.seq_length + 1) * static_cast<double>(h) / c.ranks;
  return claims;
}

struct Reference {
  std::vector<double> y, d_x, d_qkv_weight, d_qkv_bias, d_weight, d_bias;
  static auto members(auto& self) {
    return std::tie(self.y, self.d_x, self.d_qkv_weight, self.d_qkv_bias, self.d_weight,
                    self.d_bias);
  }
};

struct GridAttention final : GridShell {
  static constexpr std::string_view name = "grid_attention";
  static constexpr std::string_view about =
      "self-attention in 1, 2, 2.5 or 3 dimensions of tensor parallelism: all three passes";

  static Case with_tokens(Case c) {
    c.tokens = c.micro_batch_size * c.seq_length;
    return c;
  }

  static Sweep<Case> sweep() {
    Sweep<Case> sweep = grid_axes();
    sweep.axis("micro-batch-size", &Case::micro_batch_size, 36)
        .axis("seq-length", &Case::seq_length, 8)
        .axis("hidden-size", &Case::input_size, 144)
        .axis("num-attention-heads", &Case::num_attention_heads, 24)
        .only([](Case c) {
          c = with_tokens(c);
          c.output_size = c.input_size;
          std::string why =
              why_no_grid(c, {{PairPlace::second, {"seq-length", "hidden-size", "hidden-size"}}});
          return why.empty() ? why_not_divided(c.grid(), sizes_of(c)) : why;
        });
    add_grid_slices(sweep, {vary(&Case::micro_batch_size, {12}), vary(&Case::seq_length, {3}),
                            vary(&Case::input_size, {24}), vary(&Case::num_attention_heads, {12})});
    return sweep;
  }
  static std::string why_not(const Case& c, const Context& context) {
    const std::string why = machine::why_not_flash_attention(context.device.stream(), c.dtype,
                                                             c.input_size / c.num_attention_heads);
    return why.empty() ? GridShell::why_not(c, context) : why;
  }

  GridAttention(const Case& c, Context& context)
      : GridShell(with_tokens(c), context, c.input_size) {
    start(std::make_unique<JudgedGridAttention>(layers_, case_), claims(case_, groups_.rank()));
  }

  // The columns of a product are (q, k, v) of head 0, then of head 1, ….
  std::size_t at(std::size_t row, std::int64_t column, std::size_t which) const {
    const auto head = static_cast<std::size_t>(in_ / case_.num_attention_heads),
               c = static_cast<std::size_t>(column);
    return row * static_cast<std::size_t>(3 * in_) + (c / head * 3 + which) * head + c % head;
  }

  Reference reference() const {
    const std::int64_t n = case_.tokens, h = in_;
    const auto all = layer_->parameters();
    const std::vector<double> x = draw_x(), d_y = draw_d_y(), qkv_weight = draw(*all[0]),
                              qkv_bias = draw(*all[1]), weight = draw(*all[2]),
                              bias = draw(*all[3]);
    const auto product = [&](std::int64_t rows, std::int64_t cols, std::int64_t inner,
                             StridedDoubles a, StridedDoubles b) {
      std::vector<std::int64_t> each(static_cast<std::size_t>(rows));
      std::iota(each.begin(), each.end(), 0);
      context_.world.board().mine().progress.fetch_add(1);
      return product_rows(each, a, b, inner, cols).values;
    };
    const auto sums = [](const std::vector<double>& matrix, std::int64_t cols) {
      std::vector<double> of_columns(static_cast<std::size_t>(cols));
      for (std::size_t i = 0; i < matrix.size(); ++i)
        of_columns[i % of_columns.size()] += matrix[i];
      return of_columns;
    };
    std::vector<double> qkv = product(n, 3 * h, h, {x.data(), h, 1}, {qkv_weight.data(), 3 * h, 1});
    for (std::size_t i = 0; i < qkv.size(); ++i) qkv[i] += qkv_bias[i % qkv_bias.size()];

    AttentionValues values;
    values.d_out = product(n, h, h, {d_y.data(), h, 1}, {weight.data(), 1, h});
    const auto rows = static_cast<std::size_t>(n);
    for (std::size_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < h; ++c) {
        values.q.push_back(qkv[at(row, c, 0)]);
        values.k.push_back(qkv[at(row, c, 1)]);
        values.v.push_back(qkv[at(row, c, 2)]);
      }
    const std::int64_t heads = case_.num_attention_heads, head = h / heads;
    const AttentionReference attention =
        attention_reference({case_.micro_batch_size, case_.seq_length, heads, heads, head,
                             1 / std::sqrt(static_cast<double>(head)), true},
                            values, [&] { context_.world.board().mine().progress.fetch_add(1); });
    std::vector<double> d_qkv(qkv.size());
    for (std::size_t row = 0; row < rows; ++row)
      for (std::int64_t c = 0; c < h; ++c) {
        const std::size_t from = row * static_cast<std::size_t>(h) + static_cast<std::size_t>(c);
        d_qkv[at(row, c, 0)] = attention.d_q[from];
        d_qkv[at(row, c, 1)] = attention.d_k[from];
        d_qkv[at(row, c, 2)] = attention.d_v[from];
      }

    Reference result;
    result.y = product(n, h, h, {attention.out.data(), h, 1}, {weight.data(), h, 1});
    for (std::size_t i = 0; i < result.y.size(); ++i) result.y[i] += bias[i % bias.size()];
    result.d_x = product(n, h, 3 * h, {d_qkv.data(), 3 * h, 1}, {qkv_weight.data(), 1, 3 * h});
    result.d_qkv_weight = product(h, 3 * h, n, {x.data(), 1, h}, {d_qkv.data(), 3 * h, 1});
    result.d_weight = product(h, h, n, {attention.out.data(), 1, h}, {d_y.data(), h, 1});
    result.d_qkv_bias = sums(d_qkv, 3 * h);
    result.d_bias = sums(d_y, h);
    return result;
  }

  // The first rank computes the reference and sends it.
  void judge_numerics(Judge& judge) override {
    Reference want;
    if (groups_.rank() == 0) want = reference();
    want = context_.world.broadcast(context_.group, 0, want);
    const double longest = static_cast<double>(std::max<std::int64_t>(3 * in_, case_.tokens));
    const double bound = harness::norm_bound(case_.dtype, 1, longest) +
                         harness::norm_bound(Dtype::float64, 1, longest);
    const auto compare = [&](const std::string& what, const Tensor& result,
                             const std::vector<double>& whole, std::int64_t columns,
                             const GridBlock& block, double earlier) {
      std::vector<double> own = part(whole, columns, block);
      for (double& value : own) value += earlier;
      judge.numerics_norm(what + " against plain loops in double", to_doubles(result), own, bound);
    };
    compare("y", y_, want.y, out_, layer_->output(), 0);
    compare("d_x", d_x_, want.d_x, in_, layer_->input(), 0);
    const auto all = layer_->parameters();
    const std::vector<double>* const gradients[] = {&want.d_qkv_weight, &want.d_qkv_bias,
                                                    &want.d_weight, &want.d_bias};
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i]->held())
        compare("gradient of " + all[i]->name, all[i]->gradient, *gradients[i], all[i]->whole[1],
                all[i]->block, earlier_gradient);
  }
};
const bool registered = harness::add<GridAttention>();

}  // namespace
}  // namespace suite
