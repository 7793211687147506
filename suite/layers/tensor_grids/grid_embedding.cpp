// Claim: a token embedding whose table is split over a grid of ranks gives exactly the rows of the
// whole table, and the sums of the rows' gradients. No rank holds more than its block of the table
// and one other (2d: Xu et al. 2021, arXiv:2104.05343; 2.5d: Wang et al. 2021,
// arXiv:2105.14500; 3d: Bian et al. 2021, arXiv:2105.14450; 1d: Shoeybi et al. 2019,
// arXiv:1909.08053).
//
// The reference is a lookup by plain loops. Gradients are compared with sums in double.
#include "layers/tensor_grids/grid_embedding.h"

#include <cmath>

#include "machine/device/random.h"
#include "suite/layers/tensor_grids/grid_unit.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using layers::GridBlock, layers::PairPlace;

constexpr std::uint64_t seed_tokens = 3;

// Random tokens of all ranks.
std::vector<std::int32_t> draw_tokens(const GridCase& c, std::uint64_t seed) {
  std::vector<std::int32_t> tokens;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(c.tokens); ++i)
    tokens.push_back(
        static_cast<std::int32_t>(machine::uniform(seed + seed_tokens, i) * c.input_size));
  return tokens;
}

class JudgedGridEmbedding final : public JudgedGridLayer {
 public:
  JudgedGridEmbedding(const layers::GridContext& context, const GridCase& c, std::uint64_t seed)
      : layer_(context, "grid_embedding", c.tokens, c.input_size, c.output_size),
        tokens_(context.device, Dtype::int32, {layer_.token_count()}, Category::buffers) {
    const std::vector<std::int32_t> all = draw_tokens(c, seed);
    context.stream().copy(tokens_.data(), all.data() + layer_.first_token(), tokens_.bytes());
    context.stream().synchronize();
  }

  layers::GridParameters parameters() override { return layer_.parameters(); }
  GridBlock input() const override { return {}; }  // tokens have no gradient
  GridBlock output() const override { return layer_.output(); }
  void forward(const Tensor& /*x*/, const Tensor& y) override {
    layer_.forward(tokens_.as<std::int32_t>(), y);
  }
  void backward_input(const Tensor& d_y, const Tensor& /*d_x*/) override { d_y_ = d_y; }
  void backward_weights() override { layer_.backward_weights(tokens_.as<std::int32_t>(), d_y_); }

 private:
  layers::GridEmbedding layer_;
  Tensor tokens_, d_y_;
};

GridClaims claims(const GridCase& c, int rank) {
  const layers::GridLinearCase one =
      cost_case(c, rank, PairPlace::second, c.input_size, c.output_size);
  const layers::GridLinearCost cost = layers::grid_embedding_cost(one);
  GridClaims claims{.passes = {cost.forward, cost.backward_input, cost.backward_weights},
                    .parameters = cost.parameters,
                    .reads_parameters = false};
  // The rank's own tokens.
  const std::int64_t rows = one.mode == layers::TensorParallelMode::one_d ? c.tokens
                            : one.mode == layers::TensorParallelMode::three_d
                                ? c.tokens / one.q
                                : c.tokens / (one.q * c.depth);
  for (layers::GridPass& pass : claims.passes)
    pass.buffers += static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  return claims;
}

struct GridEmbedding final : GridShell {
  static constexpr std::string_view name = "grid_embedding";
  static constexpr std::string_view about =
      "a token embedding in 1, 2, 2.5 or 3 dimensions of tensor parallelism: forward and weights";

  static Sweep<Case> sweep() {
    Sweep<Case> sweep = grid_axes(false);
    sweep.axis("tokens", &Case::tokens, 144)
        .axis("vocab-size", &Case::input_size, 720)
        .axis("hidden-size", &Case::output_size, 144)
        .only([](const Case& c) {
          return why_no_grid(c,
                             {{PairPlace::second, {"tokens", "vocab-size", "hidden-size"}, false}});
        });
    add_grid_slices(
        sweep,
        {vary(&Case::tokens, {36}), vary(&Case::input_size, {72}), vary(&Case::output_size, {36})},
        false);
    return sweep;
  }

  GridEmbedding(const Case& c, Context& context) : GridShell(c, context, c.output_size) {
    start(std::make_unique<JudgedGridEmbedding>(layers_, c, context.seed),
          claims(c, groups_.rank()));
  }

  void judge_numerics(Judge& judge) override {
    const layers::GridParameter& table = *layer_->parameters().front();
    const std::vector<std::int32_t> tokens = draw_tokens(case_, context_.seed);
    const std::vector<double> rows = draw(table), d_y = draw_d_y();
    const auto width = static_cast<std::size_t>(out_);
    std::vector<double> y, gradient(rows.size(), earlier_gradient),
        sizes(rows.size(), earlier_gradient);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::size_t row = static_cast<std::size_t>(tokens[i]) * width;
      for (std::size_t c = 0; c < width; ++c) {
        y.push_back(rows[row + c]);
        gradient[row + c] += d_y[i * width + c];
        sizes[row + c] += std::abs(d_y[i * width + c]);
      }
    }
    judge.exact("y", to_doubles(y_), part(y, out_, layer_->output()));
    // The sum of a row has at most all tokens, in parts of the ranks that have its tokens.
    const layers::TensorGrid& grid = groups_.grid();
    const double relative = product_bound(case_.tokens, grid.columns * grid.depth,
                                          collectives::gradient_dtype(case_.dtype));
    std::vector<double> bounds = part(sizes, out_, table.block);
    for (double& bound : bounds) bound *= relative;
    judge.numerics("gradient of the table", to_doubles(table.gradient),
                   part(gradient, out_, table.block), bounds);
  }
};
const bool registered = harness::add<GridEmbedding>();

}  // namespace
}  // namespace suite
