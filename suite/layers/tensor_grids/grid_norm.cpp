// Claim: LayerNorm of rows whose columns are split over a grid of ranks gives the whole norm's
// output and gradients. The ranks of a row add up two accumulators for each of their rows, forward
// and backward; gain and bias are stored once (2d: Xu et al. 2021, arXiv:2104.05343;
// 2.5d: Wang et al. 2021, arXiv:2105.14500, once per layer of the grid; 3d: Bian et al. 2021,
// arXiv:2105.14450, on the diagonal). 1d has whole rows on every rank.
//
// The reference is the norm of whole rows in double by plain loops.
#include "layers/tensor_grids/grid_norm.h"

#include <cmath>
#include <utility>

#include "harness/judge/numerics.h"
#include "suite/layers/tensor_grids/grid_unit.h"

namespace suite {
namespace {

using layers::GridBlock, layers::PairPlace;

constexpr double epsilon = 1e-5;

class JudgedGridNorm final : public JudgedGridLayer {
 public:
  JudgedGridNorm(const layers::GridContext& context, const GridCase& c)
      : layer_(context, "grid_norm", c.tokens, c.input_size, epsilon) {}

  layers::GridParameters parameters() override { return layer_.parameters(); }
  GridBlock input() const override { return layer_.block(); }
  GridBlock output() const override { return layer_.block(); }
  void forward(const Tensor& x, const Tensor& y) override {
    x_ = x;
    layer_.forward(x, y, statistics_, Category::activations);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) override {
    d_y_ = d_y;
    layer_.backward_input(x_, statistics_, d_y, d_x);
  }
  void backward_weights() override {
    layer_.backward_weights(x_, statistics_, d_y_);
    statistics_ = {};
  }

 private:
  layers::GridNorm layer_;
  layers::GridNorm::Statistics statistics_;
  Tensor x_, d_y_;  // of the caller
};

GridClaims claims(const GridCase& c, int rank) {
  const layers::GridNormCost cost =
      layers::grid_norm_cost(cost_case(c, rank, PairPlace::second, c.input_size, c.input_size));
  return {.passes = {cost.forward, cost.backward_input, cost.backward_weights},
          .parameters = cost.parameters,
          .saved = cost.kept,
          .saved_for_weights = cost.kept};
}

struct GridNorm final : GridShell {
  static constexpr std::string_view name = "grid_norm";
  static constexpr std::string_view about =
      "LayerNorm in 1, 2, 2.5 or 3 dimensions of tensor parallelism: all three passes";

  static Sweep<Case> sweep() {
    Sweep<Case> sweep = grid_axes(false);
    sweep.axis("tokens", &Case::tokens, 144)
        .axis("hidden-size", &Case::input_size, 144)
        .only([](Case c) {
          c.output_size = c.input_size;
          return why_no_grid(c, {{PairPlace::second, {"tokens", "hidden-size", "hidden-size"}}});
        });
    add_grid_slices(sweep, {vary(&Case::tokens, {36}), vary(&Case::input_size, {36})}, false);
    return sweep;
  }

  GridNorm(const Case& c, Context& context) : GridShell(c, context, c.input_size) {
    start(std::make_unique<JudgedGridNorm>(layers_, c), claims(c, groups_.rank()));
  }

  void judge_numerics(Judge& judge) override {
    const auto all = layer_->parameters();
    const std::vector<double> x = draw_x(), d_y = draw_d_y(), gain = draw(*all[0]),
                              bias = draw(*all[1]);
    const std::size_t rows = static_cast<std::size_t>(case_.tokens), n = gain.size();
    const auto columns = static_cast<double>(n);
    std::vector<double> y(x.size()), d_x(x.size()), d_gain(n, earlier_gradient),
        d_bias(n, earlier_gradient);
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t at = row * n;
      double mean = 0, variance = 0, g_mean = 0, gn_mean = 0;
      for (std::size_t c = 0; c < n; ++c) mean += x[at + c] / columns;
      for (std::size_t c = 0; c < n; ++c) variance += std::pow(x[at + c] - mean, 2) / columns;
      const double rstd = 1 / std::sqrt(variance + epsilon);
      for (std::size_t c = 0; c < n; ++c) {
        const double g = d_y[at + c] * gain[c], normal = (x[at + c] - mean) * rstd;
        y[at + c] = normal * gain[c] + bias[c];
        d_gain[c] += d_y[at + c] * normal;
        d_bias[c] += d_y[at + c];
        g_mean += g / columns;
        gn_mean += g * normal / columns;
      }
      for (std::size_t c = 0; c < n; ++c)
        d_x[at + c] = rstd * (d_y[at + c] * gain[c] - g_mean - (x[at + c] - mean) * rstd * gn_mean);
    }
    const double longest = std::max(case_.input_size, case_.tokens);
    const double bound = harness::norm_bound(case_.dtype, 1, longest) +
                         harness::norm_bound(Dtype::float64, 1, longest);
    const auto compare = [&](const std::string& what, const Tensor& result,
                             const std::vector<double>& whole, const GridBlock& block) {
      judge.numerics_norm(what + " against plain loops in double", to_doubles(result),
                          part(whole, in_, block), bound);
    };
    compare("y", y_, y, layer_->output());
    compare("d_x", d_x_, d_x, layer_->input());
    for (const auto& [parameter, whole] : {std::pair(all[0], &d_gain), {all[1], &d_bias}})
      if (parameter->held())
        compare("gradient of " + parameter->name, parameter->gradient, *whole, parameter->block);
  }
};
const bool registered = harness::add<GridNorm>();

}  // namespace
}  // namespace suite
