#pragma once
// What column_parallel_linear and row_parallel_linear have in common as layers of a LayerUnit
// (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Their reference is the unsharded product in
// double by plain loops (product_reference.h), so `judge_numerics` is their own.
//
// Biases are as large as the products. Column-parallel: y [tokens, out/tp], all-reduces d_x.
// Row-parallel: x [tokens, in/tp], all-reduces y. The sizes are Megatron's input_size and
// output_size.

#include <type_traits>
#include <utility>

#include "layers/column_parallel_linear.h"
#include "layers/row_parallel_linear.h"
#include "suite/layers/layer_unit.h"

namespace suite {

enum class LinearCut : unsigned char { column, row };

// The other end of the product, which is not all-reduced, is gathered.
bool gathers(const LayerCase& c);
LayerEnds linear_ends(LinearCut cut, const LayerCase& c);
LayerClaims linear_claims(LinearCut cut, const LayerCase& c);
harness::Sweep<LayerCase> linear_sweep(LinearCut cut);
void judge_linear(harness::Judge& judge, const harness::Context& context, const LayerRun& run,
                  const LayerCase& c, LinearCut cut);

template <class Layer>
class JudgedLinear : public JudgedLayer {
 public:
  static constexpr LinearCut cut =
      std::is_same_v<Layer, layers::ColumnParallelLinear> ? LinearCut::column : LinearCut::row;
  static constexpr LayerTraits traits{
      .limit_applies = true,
      .ends = [](const LayerCase& c) { return linear_ends(cut, c); },
      .bias_stddev = 1};
  static LayerClaims claims(const LayerCase& c) { return linear_claims(cut, c); }
  static harness::Sweep<LayerCase> sweep() { return linear_sweep(cut); }
  static void judge_numerics(harness::Judge& judge, const harness::Context& context,
                             const LayerRun& run, const LayerCase& c) {
    judge_linear(judge, context, run, c, cut);
  }

  JudgedLinear(const layers::Context& context, const std::string& name, const LayerCase& c)
      : layer_(context, name, c.input_size, c.output_size, options(c)) {}

  layers::Parameters parameters() final { return layer_.parameters(); }
  void initialize(const layers::Initializer& initializer) final { layer_.initialize(initializer); }
  void forward(const LayerInput& in, const machine::Tensor& y) final {
    x_ = in.x;
    layer_.forward(x_, y);
  }
  void backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x) final {
    d_y_ = d_y;
    layer_.backward_input(d_y_, d_x);
  }
  void backward_weights() final { layer_.backward_weights(x_, d_y_); }

 private:
  static auto options(const LayerCase& c) {
    if constexpr (cut == LinearCut::column)
      return layers::ColumnOptions{
          .bias = c.bias, .gather_output = c.gather_output, .skip_bias_add = c.skip_bias_add};
    else
      return layers::RowOptions{.bias = c.bias,
                                .input_is_parallel = c.input_is_parallel,
                                .skip_bias_add = c.skip_bias_add};
  }

  Layer layer_;
  machine::Tensor x_, d_y_;  // the caller's
};

}  // namespace suite
