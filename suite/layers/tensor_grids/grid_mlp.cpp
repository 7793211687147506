// Claim: the perceptron over a grid of ranks gives the whole perceptron's output and gradients. The
// output of the first product is split as the input of the second, so GELU needs no communication
// (layers/tensor_grids/grid_mlp.h). In 3d (Bian et al. 2021, arXiv:2105.14450) the second layer
// exchanges two axes of the grid; in 2d and 2.5d (Xu et al. 2021, arXiv:2104.05343; Wang et al.
// 2021, arXiv:2105.14500) both layers have the same one. A rank keeps 1/p of GELU's input and
// output.
#include "layers/tensor_grids/grid_mlp.h"

#include <algorithm>
#include <utility>

#include "harness/judge/numerics.h"
#include "suite/layers/tensor_grids/grid_unit.h"
#include "suite/reference/perceptron_reference.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

using layers::GridBlock, layers::GridParameter, layers::PairPlace;

class JudgedGridMlp final : public JudgedGridLayer {
 public:
  JudgedGridMlp(const layers::GridContext& context, const GridCase& c)
      : layer_(context, "grid_mlp", c.tokens, c.input_size, c.output_size) {}

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
  layers::GridMlp layer_;
  layers::GridMlp::Saved saved_;
};

layers::GridPass joined(const layers::GridPass& first, const layers::GridPass& second) {
  layers::GridPass all = first;
  all.calls.insert(all.calls.end(), second.calls.begin(), second.calls.end());
  for (const auto& [group, labels] : second.messages)
    for (const auto& [label, traffic] : labels) all.messages[group][label] += traffic;
  return all;
}

GridClaims claims(const GridCase& c, int rank) {
  const std::int64_t n = c.tokens, h = c.input_size, f = c.output_size;
  const layers::GridLinearCost first = layers::grid_linear_cost(
                                   cost_case(c, rank, PairPlace::first, h, f)),
                               second = layers::grid_linear_cost(
                                   cost_case(c, rank, PairPlace::second, f, h));
  // A rank's block between the products. 1d splits its columns, the others also its rows.
  const std::size_t inner = static_cast<std::size_t>(n * f / c.ranks) * size_of(c.dtype);
  GridClaims claims{.passes = {joined(first.forward, second.forward),
                               joined(second.backward_input, first.backward_input),
                               joined(second.backward_weights, first.backward_weights)},
                    .parameters = first.parameters + second.parameters,
                    .saved = 2 * inner,
                    .saved_for_weights = inner};
  claims.passes[0].buffers = std::max(first.forward.buffers, second.forward.buffers);
  // Backward holds d_inner, and d_active until GELU's backward. In 3d it keeps the gathered d_y of
  // both products, and d_inner only until it is gathered.
  const std::size_t own_d_inner = first.kept > 0 ? 0 : inner;
  claims.passes[1].buffers =
      inner + std::max(inner + second.kept + second.backward_input.buffers,
                       second.kept + first.kept + first.backward_input.buffers);
  claims.passes[2].buffers =
      own_d_inner + second.kept + first.kept +
      std::max(second.backward_weights.buffers, first.backward_weights.buffers);
  claims.flops = 2 * 3.0 * 2 * c.tokens * c.input_size * c.output_size / c.ranks;
  return claims;
}

struct GridMlp final : GridShell {
  static constexpr std::string_view name = "grid_mlp";
  static constexpr std::string_view about =
      "a perceptron in 1, 2, 2.5 or 3 dimensions of tensor parallelism: all three passes";

  static Sweep<Case> sweep() {
    Sweep<Case> sweep = grid_axes();
    sweep.axis("tokens", &Case::tokens, 144)
        .axis("hidden-size", &Case::input_size, 144)
        .axis("ffn-hidden-size", &Case::output_size, 576)
        .only([](const Case& c) {
          return why_no_grid(c, {PairPlace::first, PairPlace::second});
        });
    add_grid_slices(sweep, {vary(&Case::tokens, {36}), vary(&Case::input_size, {12}),
                            vary(&Case::output_size, {48})});
    return sweep;
  }

  GridMlp(const Case& c, Context& context) : GridShell(c, context, c.input_size) {
    start(std::make_unique<JudgedGridMlp>(layers_, c), claims(c, groups_.rank()));
  }

  // The first rank computes the reference and sends it. The bound is that of one layer
  // (harness/judge/numerics.h), which includes sums of up to 64 parts.
  void judge_numerics(Judge& judge) override {
    const auto all = layer_->parameters();
    PerceptronReference reference;
    if (groups_.rank() == 0)
      reference =
          perceptron_reference({case_.tokens, in_, case_.output_size, draw_x(), draw(*all[0]),
                                draw(*all[1]), draw(*all[2]), draw(*all[3]), draw_d_y()},
                               [&] { context_.world.board().mine().progress.fetch_add(1); });
    reference = context_.world.broadcast(context_.group, 0, reference);
    const double longest = std::max(case_.output_size, case_.tokens);
    const double bound = harness::norm_bound(case_.dtype, 1, longest) +
                         harness::norm_bound(Dtype::float64, 1, longest);
    const auto compare = [&](const std::string& what, const Tensor& result,
                             const std::vector<double>& whole, std::int64_t columns,
                             const GridBlock& block, double earlier) {
      std::vector<double> want = part(whole, columns, block);
      for (double& value : want) value += earlier;
      judge.numerics_norm(what + " against plain loops in double", to_doubles(result), want, bound);
    };
    compare("y", y_, reference.y, out_, layer_->output(), 0);
    compare("d_x", d_x_, reference.d_x, in_, layer_->input(), 0);
    const std::vector<double>* const gradients[] = {&reference.d_weight1, &reference.d_bias1,
                                                    &reference.d_weight2, &reference.d_bias2};
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i]->held())
        compare("gradient of " + all[i]->name, all[i]->gradient, *gradients[i], all[i]->whole[1],
                all[i]->block, earlier_gradient);
  }
};
const bool registered = harness::add<GridMlp>();

}  // namespace
}  // namespace suite
