// Claim: a linear layer sharded along its output gives the whole layer's result within the
// roundings of its dtype. It sends one all-reduce of its input's gradient and nothing forward, and
// holds 1/tp of weight and bias. The input's gradient has the same bits on every rank (Shoeybi et
// al. 2019, arXiv:1909.08053, section 3).
//
// Claim: a linear layer sharded along its input gives the whole layer's result within the roundings
// of its dtype. It sends one all-reduce of its output and nothing backward, and holds 1/tp of the
// weight and the whole bias. Its output has the same bits on every rank (Shoeybi et al. 2019,
// arXiv:1909.08053, section 3).
//
// The reference is the unsharded product in double by plain loops (product_reference.h). Biases are
// as large as the products. Column-parallel: y [tokens, out/tp], all-reduces d_x. Row-parallel: x
// [tokens, in/tp], all-reduces y. The sizes are Megatron's input_size and output_size.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "layers/column_parallel_linear.h"
#include "layers/row_parallel_linear.h"
#include "suite/layers/layer_unit.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

enum class LinearCut : unsigned char { column, row };

// Returns whether the end of the product that is not all-reduced is gathered.
bool gathers(const LayerCase& c) {
  return c.ranks > 1 && (c.gather_output || !c.input_is_parallel);
}

Sweep<LayerCase> linear_sweep(LinearCut cut) {
  using Case = LayerCase;
  using enum Profile;
  const bool column = cut == LinearCut::column;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &Case::ranks, 2)
      .axis("tokens", &Case::seq_length, 64)
      .axis("input_size", &Case::input_size, 192)
      .axis("output_size", &Case::output_size, 384)
      .axis("bias", &Case::bias, true);
  if (column)
    sweep.axis("gather_output", &Case::gather_output, false);
  else
    sweep.axis("input_is_parallel", &Case::input_is_parallel, true);
  sweep.axis("skip_bias_add", &Case::skip_bias_add, false).only([column](const Case& c) {
    for (const auto& [axis, value] : {std::pair("tokens", c.seq_length),
                                      {"input_size", c.input_size},
                                      {"output_size", c.output_size}})
      if (value < 1)
        throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
    if (c.skip_bias_add && !c.bias) return std::string("skip_bias_add requires bias on (got off)");
    try {
      collectives::Parameter::local_shape(
          column ? "column_parallel_linear.weight" : "row_parallel_linear.weight",
          {c.output_size, c.input_size},
          {.tp = collectives::Spread::sharded, .dim = column ? 0 : 1}, c.ranks);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  const auto dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16});
  const auto mpi = vary(&Case::transport, {Transport::mpi});
  const auto biases = vary(&Case::bias, {true, false}),
             skips = vary(&Case::skip_bias_add, {false, true});
  const auto whole =
      column ? vary(&Case::gather_output, {true}) : vary(&Case::input_is_parallel, {false});
  const auto either = column ? vary(&Case::gather_output, {false, true})
                             : vary(&Case::input_is_parallel, {true, false});
  sweep
      .slice({acceptance, paper}, "matrix",
             {dtypes, vary(&Case::ranks, {2, 3, 4, 8}), biases, either, skips})
      // The rank's own output and input are the whole output and input.
      .slice({acceptance, paper}, "one rank", {dtypes, vary(&Case::ranks, {1}), biases, skips})
      .slice({acceptance, paper}, "transports", {mpi, dtypes, vary(&Case::ranks, {2, 3, 4, 8})})
      .slice({quick}, "usual", {vary(&Case::ranks, {1, 2})})
      .slice({quick}, "transports", {mpi, vary(&Case::bias, {false})})
      .slice({quick}, "edges",
             {vary(&Case::ranks, {3}), vary(&Case::seq_length, {61}),
              vary(&Case::input_size, {201}), vary(&Case::output_size, {309}), whole})
      .slice({quick}, "edges",
             {vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::ranks, {3}),
              vary(&Case::seq_length, {1}), vary(&Case::skip_bias_add, {true})})
      .slice(
          {smoke}, "smoke",
          {dtypes, vary(&Case::ranks, {1, 3}), vary(&Case::seq_length, {1, 13}),
           vary(&Case::input_size, {21}), vary(&Case::output_size, {39}), biases, either, skips});
  return sweep;
}

LayerEnds linear_ends(LinearCut cut, const LayerCase& c) {
  const bool column = cut == LinearCut::column;
  return {c.input_size, column || gathers(c) ? c.input_size : c.input_size / c.ranks, c.output_size,
          column && !gathers(c) ? c.output_size / c.ranks : c.output_size};
}

// Forward or backward has one all-reduce: y [tokens, out] forward, or d_x [tokens, in] backward. If
// the other end is gathered, its pass has an all-gather.
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
  // A gather holds a rank's part and all parts before it joins them. The gradient of the bias holds
  // the sums of all columns.
  const std::int64_t columns = column ? out : in;
  const std::size_t parts =
      static_cast<std::size_t>(n * (columns / tp + columns)) * size_of(c.dtype);
  const std::size_t sums = column && c.bias ? static_cast<std::size_t>(out) *
                                                  size_of(collectives::gradient_dtype(c.dtype))
                                            : 0;
  claims.buffers = std::max(parts, sums);
  return claims;
}

using machine::Shape;

constexpr std::uint64_t rows_seed = 5;  // added to the run's seed

// This rank's part of a matrix of the unsharded layer.
struct Part {
  std::int64_t row = 0, col = 0;  // first row and column of the part
  std::int64_t rows = 0, cols = 0;
};

void judge_linear(Judge& judge, const Context& context, const LayerRun& run, const LayerCase& c,
                  LinearCut cut) {
  const std::int64_t tokens = c.tokens(), in = c.input_size, out = c.output_size;
  const bool column = cut == LinearCut::column;
  const Dtype dtype = c.dtype, gradients = collectives::gradient_dtype(dtype);
  const std::uint64_t seed = run.seed();
  const layers::Parameters all = run.parameters();
  const collectives::Parameter& weights = *all.front();
  const auto parameter = [&](const collectives::Parameter& p, double stddev) {
    return whole_values(context, dtype, p.global_shape, layers::random_key(seed, p.name), stddev);
  };
  const auto earlier = [&](const collectives::Parameter& p) {
    return earlier_gradient(run.context(), seed, p.name, 0, p.global_shape, {});
  };
  const std::vector<double> x = whole_values(context, dtype, {tokens, in}, seed + seed_x, 1),
                            d_y = whole_values(context, dtype, {tokens, out}, seed + seed_d_y, 1),
                            weight = parameter(weights, weight_stddev(c.input_size)),
                            d_weight = earlier(weights), ones(static_cast<std::size_t>(tokens), 1),
                            nothing;
  // tp splits an all-reduced sum into products of the parts and tp - 1 additions. Each part has
  // fewer terms and is stored once. This gives the number of roundings of one term.
  const std::int64_t tp = c.ranks, rank = run.context().tp.rank();
  const std::int64_t part_in = column ? in : in / tp, part_out = column ? out / tp : out;
  const std::int64_t first_in = column ? 0 : rank * part_in,
                     first_out = column ? rank * part_out : 0;
  const int summed = static_cast<int>(tp) - 1;
  // Gathered results are compared as a whole.
  const std::int64_t columns_y = run.y().cols(), columns_x = run.d_x().cols();

  // Compares some rows of this rank's part of result = a b + start with plain loops. start: [whole
  // cols], [whole rows, whole cols], or empty. bound: relative, per element.
  const auto check = [&](std::string_view what, const Tensor& result, Part part, StridedDoubles a,
                         StridedDoubles b, std::int64_t inner, const std::vector<double>& start,
                         std::int64_t whole_cols, double bound) {
    const std::vector<double> got = to_doubles(result);
    std::vector<std::int64_t> rows = rows_to_check(part.rows, inner * part.cols, seed + rows_seed);
    const std::vector<std::int64_t> local = rows;
    for (std::int64_t& row : rows) row += part.row;
    b.data += part.col * b.col_stride;
    ProductRows want = product_rows(rows, a, b, inner, part.cols);
    const auto cols = static_cast<std::size_t>(part.cols);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        const std::size_t col = static_cast<std::size_t>(part.col) + j;
        if (!start.empty()) {
          const double begin = start.size() == static_cast<std::size_t>(whole_cols)
                                   ? start[col]
                                   : start[static_cast<std::size_t>(rows[i] * whole_cols) + col];
          want.values[i * cols + j] += begin;
          want.sizes[i * cols + j] += std::abs(begin);
        }
        want.sizes[i * cols + j] *= bound;
      }
      judge.numerics(fmt::format("{}, row {} of this rank's", what, local[i]),
                     std::span(got).subspan(static_cast<std::size_t>(local[i]) * cols, cols),
                     std::span(want.values).subspan(i * cols, cols),
                     std::span(want.sizes).subspan(i * cols, cols));
    }
  };
  check("y", run.y(), {0, gathers(c) ? 0 : first_out, tokens, columns_y}, {x.data(), in, 1},
        {weight.data(), 1, in}, in, c.bias && !c.skip_bias_add ? parameter(*all[1], 1) : nothing,
        out, product_bound(part_in, column ? 1 : summed + 1, dtype));
  check("d_x", run.d_x(), {0, gathers(c) ? 0 : first_in, tokens, columns_x}, {d_y.data(), out, 1},
        {weight.data(), in, 1}, out, nothing, in,
        product_bound(part_out, column ? summed : 0, dtype));
  check("gradient of weight", weights.gradient, {first_out, first_in, part_out, part_in},
        {d_y.data(), 1, out}, {x.data(), in, 1}, tokens, d_weight, in,
        product_bound(tokens, 1, gradients));
  if (!c.bias) return;
  // Gathered columns are summed separately and then added.
  check("gradient of bias", all[1]->gradient, {0, first_out, 1, part_out}, {ones.data(), tokens, 1},
        {d_y.data(), out, 1}, tokens, earlier(*all[1]), out,
        product_bound(tokens, gathers(c) ? 2 : 1, gradients));
}

template <LinearCut cut>
class JudgedLinear final : public JudgedLayer {
 public:
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

  std::conditional_t<cut == LinearCut::column, layers::ColumnParallelLinear,
                     layers::RowParallelLinear>
      layer_;
  Tensor x_, d_y_;  // tensors of the layer's caller
};

template <LinearCut cut>
constexpr LayerTraits linear(std::string_view name, std::string_view about) {
  return {.name = name,
          .about = about,
          .claims = [](const LayerCase& c) { return linear_claims(cut, c); },
          .make = make_layer<JudgedLinear<cut>>,
          .limit_applies = true,
          .ends = [](const LayerCase& c) { return linear_ends(cut, c); },
          .sweep = [] { return linear_sweep(cut); },
          .judge_numerics = [](Judge& judge, const Context& context, const LayerRun& run,
                               const LayerCase& c) { judge_linear(judge, context, run, c, cut); },
          .bias_stddev = 1};
}
constexpr LayerTraits column = linear<LinearCut::column>(
    "column_parallel_linear", "a linear layer sharded along its output: all three passes");
constexpr LayerTraits row = linear<LinearCut::row>(
    "row_parallel_linear", "a linear layer sharded along its input: all three passes");

const bool registered = harness::add<LayerUnit<column>>() && harness::add<LayerUnit<row>>();

}  // namespace
}  // namespace suite
