// Claim: a linear layer cut along its output computes what the whole one does, within the roundings
// of its dtype; sends one all-reduce of its input's gradient and nothing forward; holds 1/tp of
// weight and bias; and leaves the input's gradient with the same bits on every rank (Shoeybi et al.
// 2019, arXiv:1909.08053, section 3).
//
// Claim: a linear layer cut along its input computes what the whole one does, within the roundings
// of its dtype; sends one all-reduce of its output and nothing backward; holds 1/tp of the weight
// and the whole bias; and leaves its output with the same bits on every rank (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3).

#include "suite/layers/linear_layer.h"

#include <algorithm>
#include <type_traits>

#include "layers/column_parallel_linear.h"
#include "layers/row_parallel_linear.h"

namespace suite {

bool gathers(const LayerCase& c) {
  return c.ranks > 1 && (c.gather_output || !c.input_is_parallel);
}

namespace {

LayerEnds linear_ends(LinearCut cut, const LayerCase& c) {
  const bool column = cut == LinearCut::column;
  return {c.input_size, column || gathers(c) ? c.input_size : c.input_size / c.ranks, c.output_size,
          column && !gathers(c) ? c.output_size / c.ranks : c.output_size};
}

// One all-reduce: of y [tokens, out] forward, or of d_x [tokens, in] backward. If the other end is
// gathered, an all-gather of it.
LayerClaims linear_claims(LinearCut cut, const LayerCase& c) {
  const bool column = cut == LinearCut::column;
  const std::int64_t in = c.input_size, out = c.output_size, n = c.tokens(), tp = c.ranks;
  const auto call = [&](Operation operation, std::int64_t columns) {
    return std::vector<collectives::CollectiveCalls>{
        {"tp", operation, c.dtype, c.ranks, n * columns, 1}};
  };
  LayerClaims claims;
  claims.parameters = in * out / tp + (!c.bias ? 0 : column ? out / tp : out);
  claims.flops = 3.0 * 2 * static_cast<double>(n) * static_cast<double>(in * out) / c.ranks;
  const auto pass = [&](Pass which) -> auto& {
    return claims.calls[static_cast<std::size_t>(which)];
  };
  if (c.ranks > 1)
    pass(column ? Pass::backward_input : Pass::forward) =
        call(Operation::all_reduce, column ? in : out);
  if (!gathers(c)) return claims;
  pass(column ? Pass::forward : Pass::backward_input) =
      call(Operation::all_gather, column ? out : in);
  // Gathered: a rank's part, and all parts before they are put next to each other; for the gradient
  // of the bias the sums of all columns.
  const std::int64_t columns = column ? out : in;
  const std::size_t parts =
      static_cast<std::size_t>(n * (columns / tp + columns)) * size_of(c.dtype);
  const std::size_t sums = column && c.bias ? static_cast<std::size_t>(out) *
                                                  size_of(collectives::gradient_dtype(c.dtype))
                                            : 0;
  claims.buffers = std::max(parts, sums);
  return claims;
}

template <class Layer>
class JudgedLinear : public JudgedLayer {
 public:
  static constexpr LinearCut cut =
      std::is_same_v<Layer, layers::ColumnParallelLinear> ? LinearCut::column : LinearCut::row;
  static constexpr LayerTraits traits{
      .limit_applies = true,
      .ends = [](const LayerCase& c) { return linear_ends(cut, c); },
      .sweep = [] { return linear_sweep(cut); },
      .judge_numerics = [](Judge& judge, const Context& context, const LayerRun& run,
                           const LayerCase& c) { judge_linear(judge, context, run, c, cut); },
      .bias_stddev = 1};
  static LayerClaims claims(const LayerCase& c) { return linear_claims(cut, c); }

  JudgedLinear(const layers::Context& context, const std::string& name, const LayerCase& c)
      : layer_(context, name, c.input_size, c.output_size, options(c)) {}

  layers::Parameters parameters() final { return layer_.parameters(); }
  void forward(const LayerInput& in, const Tensor& y) final {
    x_ = in.x;
    layer_.forward(x_, y);
  }
  void backward_input(const Tensor& d_y, const Tensor& d_x) final {
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
  Tensor x_, d_y_;  // the caller's
};

class ColumnParallelLinear final : public JudgedLinear<layers::ColumnParallelLinear> {
 public:
  static constexpr std::string_view name = "column_parallel_linear";
  static constexpr std::string_view about = "a linear layer cut along its output: all three passes";
  ColumnParallelLinear(const layers::Context& context, const LayerCase& c)
      : JudgedLinear(context, std::string(name), c) {}
};

class RowParallelLinear final : public JudgedLinear<layers::RowParallelLinear> {
 public:
  static constexpr std::string_view name = "row_parallel_linear";
  static constexpr std::string_view about = "a linear layer cut along its input: all three passes";
  RowParallelLinear(const layers::Context& context, const LayerCase& c)
      : JudgedLinear(context, std::string(name), c) {}
};

const bool registered =
    harness::add<LayerUnit<ColumnParallelLinear>>() && harness::add<LayerUnit<RowParallelLinear>>();

}  // namespace
}  // namespace suite
