// Compares column- and row-parallel linear layers with plain loops in long double, element by
// element.
//
// A product of k terms is summed in the accumulator in any order and rounded once. Its error is at
// most gamma(k) |a||b| of the accumulator, then one rounding of the result. An all-reduce (or
// reduce-scatter) of t parts adds t - 1 roundings, and a bias adds one.

#include "layers/column_parallel_linear.h"
#include "layers/row_parallel_linear.h"
#include "layers/testing/sharded_case.h"

namespace layers::testing {
namespace {

using machine::Dtype;
using machine::Tensor;

constexpr std::int64_t in = 20, out = 28;

struct Sums {
  std::vector<long double> value, size;  // of terms, and of their absolute values
};

// c[i, j] = sum over k of a(i, k) b(k, j)
template <class A, class B>
Sums product(std::int64_t rows, std::int64_t cols, std::int64_t inner, A a, B b) {
  Sums sums;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      long double value = 0, size = 0;
      for (std::int64_t k = 0; k < inner; ++k) {
        const long double term = static_cast<long double>(a(i, k)) * b(k, j);
        value += term;
        size += std::abs(term);
      }
      sums.value.push_back(value);
      sums.size.push_back(size);
    }
  }
  return sums;
}

void add(Sums& sums, const std::vector<double>& terms) {
  for (std::size_t i = 0; i < sums.value.size(); ++i) {
    const double term = terms[i % terms.size()];
    sums.value[i] += term;
    sums.size[i] += std::abs(term);
  }
}

void expect_elements(const std::vector<double>& got, const Sums& want, double bound,
                     const char* what) {
  ASSERT_EQ(got.size(), want.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto error = static_cast<double>(std::abs(got[i] - want.value[i]) / want.size[i]);
    worst = std::max(worst, error);
  }
  EXPECT_LE(worst, bound) << what;
}

struct LinearCase {
  int tp;
  Dtype dtype;
  int tokens;
  bool sequence_parallel = false;
  // gather_output of a column-parallel layer, or not input_is_parallel of a row-parallel layer.
  bool whole = false;
  bool bias = true, skip_bias_add = false;
  TpCommOverlap overlap{};
};

constexpr TpCommOverlap all_parts{.enabled = true};
constexpr TpCommOverlap by_share{.enabled = true, .rs_dgrad = true};

class Linear : public ::testing::TestWithParam<LinearCase> {
 protected:
  int tp() const { return GetParam().tp; }
  std::int64_t tokens() const { return GetParam().tokens; }
  Dtype dtype() const { return GetParam().dtype; }
  Dtype gradients() const { return collectives::gradient_dtype(dtype()); }
  double u() const { return machine::unit_roundoff(dtype()); }
  double u_gradient() const { return machine::unit_roundoff(gradients()); }
  double u_sum() const { return accumulator_roundoff(dtype()); }

  std::vector<double> x = random_values(tokens() * in, 1, dtype());
  std::vector<double> d_y = random_values(tokens() * out, 2, dtype());
  std::vector<double> weight = random_values(out * in, 3, dtype());
  std::vector<double> bias = random_values(out, 4, dtype());
  std::vector<double> d_weight = random_values(out * in, 5, gradients());  // of an earlier
  std::vector<double> d_bias = random_values(out, 6, gradients());         // micro-batch

  template <class Layer>
  void set(const Rank& rank, Layer& layer) const {
    const auto place = [&](collectives::Parameter& parameter, const std::vector<double>& value,
                           const std::vector<double>& gradient) {
      const bool cut = parameter.placement.tp == collectives::Spread::sharded;
      const int dim = cut ? parameter.placement.dim : replicated;
      parameter.value = scatter(rank, value, parameter.global_shape, dim, dtype());
      parameter.gradient = scatter(rank, gradient, parameter.global_shape, dim, gradients());
      if (parameter.placement.gradient_partial_over_tp && rank.tp.rank() > 0)
        rank.context.kernels().fill(parameter.gradient, 0);
    };
    place(*layer.parameters().front(), weight, d_weight);
    if (GetParam().bias) place(*layer.parameters().back(), bias, d_bias);
  }

  template <class Layer>
  static Layer make(const Context& context) {
    const LinearCase& c = GetParam();
    if constexpr (std::is_same_v<Layer, ColumnParallelLinear>)
      return Layer(context, "layer", in, out,
                   {.bias = c.bias, .gather_output = c.whole, .skip_bias_add = c.skip_bias_add});
    else
      return Layer(
          context, "layer", in, out,
          {.bias = c.bias, .input_is_parallel = !c.whole, .skip_bias_add = c.skip_bias_add});
  }

  // Runs every pass once. x and y are split along these extents.
  template <class Layer>
  Observed run(int dim_x, int dim_y) const {
    return observe(tp(), dtype(), [&](Rank& rank) {
      rank.context.sequence_parallel = GetParam().sequence_parallel;
      rank.context.overlap = GetParam().overlap;
      if (GetParam().overlap.enabled) rank.tp.set_algorithms(collectives::algorithms_by_share());
      Layer layer = make<Layer>(rank.context);
      set(rank, layer);
      const machine::Shape shape_x{tokens(), in}, shape_y{tokens(), out};
      const Tensor x_here = scatter(rank, x, shape_x, dim_x);
      const Tensor d_y_here = scatter(rank, d_y, shape_y, dim_y);
      const Tensor y = rank.context.tensor(d_y_here.shape(), machine::Category::buffers);
      const Tensor d_x = rank.context.tensor(x_here.shape(), machine::Category::buffers);
      layer.forward(x_here, y);
      if constexpr (std::is_same_v<Layer, RowParallelLinear>) {
        layer.backward_weights(x_here, layer.backward_input(d_y_here, d_x));
      } else if (rank.context.joins_halves(machine::Category::buffers)) {
        layer.backward(x_here, d_y_here, d_x);
      } else {
        layer.backward_input(d_y_here, d_x);
        layer.backward_weights(x_here, d_y_here);
      }
      Observed seen;
      seen["y"] = gather(rank, y, shape_y, dim_y);
      seen["d_x"] = gather(rank, d_x, shape_x, dim_x);
      observe_gradients(rank, layer.parameters(), seen);
      return seen;
    });
  }

  void expect(const Observed& seen, int roundings_of_y, int roundings_of_d_x) const {
    const auto at = [](const std::vector<double>& m, std::int64_t cols) {
      return [&m, cols](std::int64_t i, std::int64_t j) {
        return m[static_cast<std::size_t>(i * cols + j)];
      };
    };
    const auto transposed = [&](const std::vector<double>& m, std::int64_t cols) {
      return [f = at(m, cols)](std::int64_t i, std::int64_t j) { return f(j, i); };
    };
    Sums want = product(tokens(), out, in, at(x, in), transposed(weight, in));
    if (GetParam().bias && !GetParam().skip_bias_add) add(want, bias);
    expect_elements(seen.at("y"), want, then(gamma(in + 1, u_sum()), gamma(roundings_of_y, u())),
                    "y");
    want = product(tokens(), in, out, at(d_y, out), at(weight, in));
    expect_elements(seen.at("d_x"), want, then(gamma(out, u_sum()), gamma(roundings_of_d_x, u())),
                    "d_x");
    // One more rounding each, because the product is added to the previous gradient.
    const double gradient_bound =
        then(gamma(static_cast<double>(tokens()) + 1, u_sum()), gamma(1, u_gradient()));
    want = product(out, in, tokens(), transposed(d_y, out), at(x, in));
    add(want, d_weight);
    expect_elements(seen.at("gradient of layer.weight"), want, gradient_bound, "weight");
    EXPECT_EQ(seen.contains("gradient of layer.bias"), GetParam().bias);
    if (!GetParam().bias) return;
    want = product(
        1, out, tokens(), [](auto, auto) { return 1.0; }, at(d_y, out));
    add(want, d_bias);
    // If columns were gathered, the sum is rounded before it is added.
    expect_elements(seen.at("gradient of layer.bias"), want,
                    then(gradient_bound, gamma(GetParam().whole ? 1 : 0, u_gradient())), "bias");
  }
};

TEST_P(Linear, ColumnParallel) {
  // y: the product and the bias. d_x: the product, and an addition for each other rank.
  expect(run<ColumnParallelLinear>(cut_of_rows(GetParam().sequence_parallel),
                                   GetParam().whole ? replicated : 1),
         2, tp());
}

TEST_P(Linear, RowParallel) {
  // y: the product, an addition for each other rank, the bias. d_x: the product.
  expect(run<RowParallelLinear>(GetParam().whole ? replicated : 1,
                                cut_of_rows(GetParam().sequence_parallel)),
         tp() + 1, 1);
}

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const int tp : {1, 2, 4}) {
    for (const Dtype dtype : machine::floating_dtypes) {
      for (const int tokens : {1, 7, 30}) cases.push_back({tp, dtype, tokens});
      for (const int tokens : {4, 28})
        if (tp > 1) cases.push_back({tp, dtype, tokens, true});
      cases.push_back({.tp = tp, .dtype = dtype, .tokens = 7, .whole = true});
      cases.push_back({.tp = tp, .dtype = dtype, .tokens = 7, .whole = true, .bias = false});
      cases.push_back(
          {.tp = tp, .dtype = dtype, .tokens = 7, .whole = true, .skip_bias_add = true});
      if (tp > 1)
        cases.push_back(
            {.tp = tp, .dtype = dtype, .tokens = 4, .sequence_parallel = true, .bias = false});
      for (const TpCommOverlap& overlap : {all_parts, by_share})
        for (const bool sequence_parallel : {false, true})
          if (tp > 1)
            cases.push_back({.tp = tp,
                             .dtype = dtype,
                             .tokens = 28,
                             .sequence_parallel = sequence_parallel,
                             .overlap = overlap});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<LinearCase>& info) {
  return "tp" + std::to_string(info.param.tp) + "_" + std::string(name(info.param.dtype)) + "_" +
         std::to_string(info.param.tokens) + "tokens" +
         (info.param.sequence_parallel ? "_sequence_parallel" : "") +
         (info.param.whole ? "_whole" : "") + (info.param.bias ? "" : "_without_bias") +
         (info.param.skip_bias_add ? "_skips_bias" : "") +
         (!info.param.overlap.enabled      ? ""
          : info.param.overlap == by_share ? "_by_share"
                                           : "_overlapped");
}

INSTANTIATE_TEST_SUITE_P(Cases, Linear, ::testing::ValuesIn(linear_cases()), case_name);

// Column-parallel layers communicate only backward, row-parallel layers only forward (the
// conjugates). With sequence parallelism, both communicate in both directions. Column-parallel
// layers also communicate for the weights.
TEST(LinearTraffic, OneCollectiveEach) {
  for (const bool sequence_parallel : {false, true}) {
    on_ranks(2, Dtype::float32, [&](Rank& rank) {
      rank.context.sequence_parallel = sequence_parallel;
      const int cut = cut_of_rows(sequence_parallel);
      ColumnParallelLinear column(rank.context, "column", 8, 16);
      RowParallelLinear row(rank.context, "row", 16, 8);
      for (collectives::Parameter* parameter : joined({column.parameters(), row.parameters()})) {
        Initializer{.weight_stddev = 1, .residual_stddev = 1, .bias_stddev = 1}.fill(rank.context,
                                                                                     {parameter});
        zero_gradient(rank.context, *parameter);
      }
      const Tensor x = scatter(rank, random_values(48, 1, Dtype::float32), {6, 8}, cut);
      const Tensor inner = scatter(rank, random_values(96, 2, Dtype::float32), {6, 16}, 1);
      const auto sent = [&](auto work) {
        rank.tp.link().reset_traffic();
        work();
        return rank.tp.link().total().bytes_sent;
      };
      // (n - 1)/n of 6 * 8 floats on two ranks. An all-reduce sends twice as much.
      const std::uint64_t half = 96, all_reduce = 192;
      Tensor all;
      EXPECT_EQ(sent([&] { column.forward(x, inner); }), sequence_parallel ? half : 0);
      EXPECT_EQ(sent([&] { column.backward_input(inner, x); }),
                sequence_parallel ? half : all_reduce);
      EXPECT_EQ(sent([&] { column.backward_weights(x, inner); }), sequence_parallel ? half : 0);
      EXPECT_EQ(sent([&] { row.forward(inner, x); }), sequence_parallel ? half : all_reduce);
      EXPECT_EQ(sent([&] { all = row.backward_input(x, inner); }), sequence_parallel ? half : 0);
      EXPECT_EQ(sent([&] { row.backward_weights(inner, all); }), 0u);
    });
  }
}

// A tensor that every rank has is gathered again. The conjugate of the gather sends nothing.
TEST(LinearTraffic, GathersReplicatedEnds) {
  on_ranks(2, Dtype::float32, [&](Rank& rank) {
    ColumnParallelLinear column(rank.context, "column", 8, 16, {.gather_output = true});
    RowParallelLinear row(rank.context, "row", 16, 8, {.input_is_parallel = false});
    for (collectives::Parameter* parameter : joined({column.parameters(), row.parameters()})) {
      Initializer{.weight_stddev = 1, .residual_stddev = 1, .bias_stddev = 1}.fill(rank.context,
                                                                                   {parameter});
      zero_gradient(rank.context, *parameter);
    }
    const Tensor narrow = scatter(rank, random_values(48, 1, Dtype::float32), {6, 8}),
                 wide = scatter(rank, random_values(96, 2, Dtype::float32), {6, 16});
    const auto sent = [&](auto work) {
      rank.tp.link().reset_traffic();
      work();
      return rank.tp.link().total().bytes_sent;
    };
    const std::uint64_t gather = 192, all_reduce = 192;  // half of 6 * 16 floats; 6 * 8
    EXPECT_EQ(sent([&] { column.forward(narrow, wide); }), gather);
    EXPECT_EQ(sent([&] { column.backward_input(wide, narrow); }), all_reduce);
    EXPECT_EQ(sent([&] { column.backward_weights(narrow, wide); }), 0u);
    EXPECT_EQ(sent([&] { row.forward(wide, narrow); }), all_reduce);
    EXPECT_EQ(sent([&] { row.backward_input(narrow, wide); }), gather);
    EXPECT_EQ(sent([&] { row.backward_weights(wide, narrow); }), 0u);
  });
}

TEST(LinearShape, RejectsGatheringWithSequenceParallelism) {
  on_ranks(2, Dtype::float32, [](Rank& rank) {
    rank.context.sequence_parallel = true;
    EXPECT_THROW(ColumnParallelLinear(rank.context, "fc1", 4, 8, {.gather_output = true}),
                 std::invalid_argument);
    EXPECT_THROW(RowParallelLinear(rank.context, "fc2", 8, 4, {.input_is_parallel = false}),
                 std::invalid_argument);
  });
}

TEST(LinearShape, NamesTheInvalidDegree) {
  on_ranks(2, Dtype::float32, [](Rank& rank) {
    try {
      ColumnParallelLinear(rank.context, "fc1", 4, 7);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find("fc1"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace layers::testing
