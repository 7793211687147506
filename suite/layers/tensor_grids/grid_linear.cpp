// Claim: a linear layer over a grid of ranks gives the whole layer's result within the roundings of
// its dtype, and no rank holds a whole matrix (except the input of 1d). It sends and holds as the
// papers say: 2d (Xu et al. 2021, Optimus, arXiv:2104.05343) broadcasts or reduces blocks of two of
// the three matrices in each pass, 2.5d (Wang et al. 2021, Tesseract, arXiv:2105.14500) does so for
// 1/depth of the tokens and sums the gradient of the weights over the depth, and 3d (Bian et al.
// 2021, arXiv:2105.14450) gathers two and reduce-scatters one. 1d is Shoeybi et al. 2019,
// arXiv:1909.08053. layers/tensor_grids/grid_cost.h has the closed formulas.
//
// The reference is the product of whole matrices in double by plain loops (product_reference.h).
// Biases are as large as the products.
#include "layers/tensor_grids/grid_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "suite/layers/tensor_grids/grid_unit.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using layers::GridBlock, layers::GridParameter, layers::PairPlace;

class JudgedGridLinear final : public JudgedGridLayer {
 public:
  JudgedGridLinear(const layers::GridContext& context, const GridCase& c)
      : layer_(context, "grid_linear", {c.tokens, c.input_size, c.output_size}, {.bias = c.bias}) {}

  layers::GridParameters parameters() override { return layer_.parameters(); }
  GridBlock input() const override { return layer_.input(); }
  GridBlock output() const override { return layer_.output(); }
  void forward(const Tensor& x, const Tensor& y) override {
    x_ = x;
    layer_.forward(x, y);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) override {
    all_d_y_ = layer_.backward_input(d_y, d_x);
  }
  void backward_weights() override {
    layer_.backward_weights(x_, all_d_y_);
    all_d_y_ = Tensor();
  }

 private:
  layers::GridLinear layer_;
  Tensor x_, all_d_y_;
};

GridClaims claims(const GridCase& c, int rank) {
  const layers::GridLinearCost cost =
      layers::grid_linear_cost(cost_case(c, rank, PairPlace::first, c.input_size, c.output_size));
  GridClaims claims{.passes = {cost.forward, cost.backward_input, cost.backward_weights},
                    .parameters = cost.parameters};
  claims.passes[1].buffers += cost.kept;
  claims.passes[2].buffers += cost.kept;
  claims.flops = 3.0 * 2 * c.tokens * c.input_size * c.output_size / c.ranks;
  return claims;
}

struct GridLinear final : GridShell {
  static constexpr std::string_view name = "grid_linear";
  static constexpr std::string_view about =
      "a linear layer in 1, 2, 2.5 or 3 dimensions of tensor parallelism: all three passes";

  static Sweep<Case> sweep() {
    Sweep<Case> sweep = grid_axes();
    sweep.axis("tokens", &Case::tokens, 144)
        .axis("input_size", &Case::input_size, 144)
        .axis("output_size", &Case::output_size, 288)
        .axis("bias", &Case::bias, true)
        .only([](const Case& c) { return why_no_grid(c, {GridLayer()}); });
    add_grid_slices(sweep, {vary(&Case::tokens, {36}), vary(&Case::input_size, {12}),
                            vary(&Case::output_size, {24})});
    sweep.slice({Profile::acceptance, Profile::paper}, "without bias",
                {vary(&Case::mode, {"1d", "2d"}), vary(&Case::bias, {false})});
    return sweep;
  }

  GridLinear(const Case& c, Context& context) : GridShell(c, context, c.output_size) {
    start(std::make_unique<JudgedGridLinear>(layers_, c), claims(c, groups_.rank()));
  }

  // The parts of a sum: blocks that are multiplied one after the other, or on different ranks. Each
  // is rounded, and so is each addition of a part.
  void judge_numerics(Judge& judge) override {
    const layers::TensorGrid& grid = groups_.grid();
    const bool one = grid.mode == layers::TensorParallelMode::one_d;
    const std::int64_t M = case_.tokens, K = in_, F = out_;
    const std::vector<double> x = draw_x(), d_y = draw_d_y(), ones(static_cast<std::size_t>(M), 1);
    const auto all = layer_->parameters();
    const std::vector<double> weight = draw(*all[0]),
                              bias = case_.bias ? draw(*all[1]) : std::vector<double>();
    const int parts = grid.columns;
    const auto bound = [&](std::int64_t inner, int of, int later, Dtype dtype) {
      return product_bound(inner / of, of - 1 + later, dtype);
    };
    const Dtype gradients = collectives::gradient_dtype(case_.dtype);
    // rows: of the whole result. start: added to each row, one value or one for each column.
    const auto check = [&](std::string_view what, const Tensor& result, const GridBlock& block,
                           StridedDoubles a, StridedDoubles b, std::int64_t inner,
                           const std::vector<double>& start, double relative) {
      std::vector<std::int64_t> rows;
      for (std::int64_t i = 0; i < block.rows; ++i) rows.push_back(block.row + i);
      b.data += block.col * b.col_stride;
      ProductRows want = product_rows(rows, a, b, inner, block.cols);
      for (std::size_t i = 0; i < want.values.size(); ++i) {
        const std::size_t column = i % static_cast<std::size_t>(block.cols);
        const double begin =
            start.size() > 1 ? start[static_cast<std::size_t>(block.col) + column] : start.front();
        want.values[i] += begin;
        want.sizes[i] = relative * (want.sizes[i] + std::abs(begin));
      }
      judge.numerics(what, to_doubles(result), want.values, want.sizes);
    };
    const std::vector<double> zero{0}, earlier{earlier_gradient};
    check("y", y_, layer_->output(), {x.data(), K, 1}, {weight.data(), F, 1}, K,
          case_.bias ? bias : zero, bound(K, one ? 1 : parts, case_.bias ? 1 : 0, case_.dtype));
    check("d_x", d_x_, layer_->input(), {d_y.data(), F, 1}, {weight.data(), 1, F}, F, zero,
          bound(F, parts, 0, case_.dtype));
    check("gradient of weight", all[0]->gradient, all[0]->block, {x.data(), 1, K},
          {d_y.data(), F, 1}, M, earlier, bound(M, one ? 1 : parts * grid.depth, 1, gradients));
    if (case_.bias && all[1]->held())
      check("gradient of bias", all[1]->gradient, all[1]->block, {ones.data(), M, 1},
            {d_y.data(), F, 1}, M, earlier, bound(M, one ? 1 : parts * grid.depth, 1, gradients));
  }
};
const bool registered = harness::add<GridLinear>();

}  // namespace
}  // namespace suite
