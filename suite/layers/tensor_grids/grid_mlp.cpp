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

GridClaims claims(const GridCase& c, int rank) {
  const std::int64_t f = c.output_size;
  GridClaims claims = claims_of_pair(c, rank, c.input_size, f, f, c.input_size);
  const std::size_t inner = static_cast<std::size_t>(c.tokens * f / c.ranks) * size_of(c.dtype);
  claims.saved = 2 * inner;
  claims.saved_for_weights = inner;
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
          return why_no_grid(
              c, {{PairPlace::first, {"tokens", "hidden-size", "ffn-hidden-size"}},
                  {PairPlace::second, {"tokens", "ffn-hidden-size", "hidden-size"}, true}});
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
