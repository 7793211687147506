// The unsharded linear layer in double by plain loops, compared with what a rank holds of it.

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <vector>

#include "layers/parameter.h"
#include "suite/layers/linear_layer.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using machine::Shape;

constexpr std::uint64_t rows_seed = 5;  // added to the run's

// A whole tensor of which every rank has a shard: values depend only on the global index.
std::vector<double> whole(const Context& context, Dtype dtype, Shape shape, std::uint64_t seed,
                          double stddev) {
  const Tensor tensor(context.device, dtype, shape, Category::buffers);
  context.device.stream().kernels().fill_normal(tensor, seed, {}, 0, stddev);
  return to_doubles(tensor);
}

// A matrix of the unsharded layer and where this rank's part of it begins.
struct Part {
  std::int64_t row = 0, col = 0;  // of the part in the whole
  std::int64_t rows = 0, cols = 0;
};

// result = a b (+ start, one value an element of the whole or one a column), of which this rank has
// `part`: some rows of it against plain loops.
struct PartialCheck {
  StridedDoubles a, b;  // of the whole
  std::int64_t inner;
  const std::vector<double> start;  // [whole cols], [whole rows, whole cols], or empty
  std::int64_t whole_cols;
  double bound;  // relative, of one element

  void run(Judge& judge, std::string_view what, const Tensor& result, Part part,
           std::uint64_t seed) const {
    const std::vector<double> got = to_doubles(result);
    std::vector<std::int64_t> rows = rows_to_check(part.rows, inner * part.cols, seed);
    const std::vector<std::int64_t> local = rows;
    for (std::int64_t& row : rows) row += part.row;
    StridedDoubles right = b;
    right.data += part.col * b.col_stride;
    ProductRows want = product_rows(rows, a, right, inner, part.cols);
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
  }
};

}  // namespace

void judge_linear(Judge& judge, const Context& context, const LayerRun& run, const LayerCase& c,
                  LinearCut cut) {
  const std::int64_t tokens = c.tokens(), in = c.input_size, out = c.output_size;
  const bool column = cut == LinearCut::column;
  const Dtype dtype = c.dtype, gradients = collectives::gradient_dtype(dtype);
  const std::uint64_t seed = run.seed();
  const layers::Parameters all = run.parameters();
  const collectives::Parameter& weights = *all.front();
  const auto parameter = [&](const collectives::Parameter& p, double stddev) {
    return whole(context, dtype, p.global_shape, layers::random_key(seed, p.name), stddev);
  };
  const auto earlier = [&](const collectives::Parameter& p) {
    return earlier_gradient(run.context(), seed, p.name, 0, p.global_shape, {});
  };
  const std::vector<double> x = whole(context, dtype, {tokens, in}, seed + seed_x, 1),
                            d_y = whole(context, dtype, {tokens, out}, seed + seed_d_y, 1),
                            weight = parameter(weights, weight_stddev(c.input_size)),
                            d_weight = earlier(weights), ones(static_cast<std::size_t>(tokens), 1),
                            nothing;
  // tp cuts the sum of what is all-reduced: products of the parts, then tp - 1 additions. Fewer
  // terms a part, each stored once: the roundings that one term meets.
  const std::int64_t tp = c.ranks, rank = run.context().tp.rank();
  const std::int64_t part_in = column ? in : in / tp, part_out = column ? out / tp : out;
  const std::int64_t first_in = column ? 0 : rank * part_in,
                     first_out = column ? rank * part_out : 0;
  const int summed = static_cast<int>(tp) - 1;
  // Gathered results are compared as a whole.
  const std::int64_t columns_y = run.y().cols(), columns_x = run.d_x().cols();

  PartialCheck{{x.data(), in, 1},
               {weight.data(), 1, in},
               in,
               c.bias && !c.skip_bias_add ? parameter(*all[1], 1) : nothing,
               out,
               product_bound(part_in, column ? 1 : summed + 1, dtype)}
      .run(judge, "y", run.y(), {0, gathers(c) ? 0 : first_out, tokens, columns_y},
           seed + rows_seed);
  PartialCheck{{d_y.data(), out, 1},
               {weight.data(), in, 1},
               out,
               nothing,
               in,
               product_bound(part_out, column ? summed : 0, dtype)}
      .run(judge, "d_x", run.d_x(), {0, gathers(c) ? 0 : first_in, tokens, columns_x},
           seed + rows_seed);
  PartialCheck{{d_y.data(), 1, out},
               {x.data(), in, 1},
               tokens,
               d_weight,
               in,
               product_bound(tokens, 1, gradients)}
      .run(judge, "gradient of weight", weights.gradient, {first_out, first_in, part_out, part_in},
           seed + rows_seed);
  if (!c.bias) return;
  const collectives::Parameter& biases = *all[1];
  // Gathered columns are summed separately and then added.
  PartialCheck{{ones.data(), tokens, 1},
               {d_y.data(), out, 1},
               tokens,
               earlier(biases),
               out,
               product_bound(tokens, gathers(c) ? 2 : 1, gradients)}
      .run(judge, "gradient of bias", biases.gradient, {0, first_out, 1, part_out},
           seed + rows_seed);
}

}  // namespace suite
