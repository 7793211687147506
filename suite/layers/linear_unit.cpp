#include "suite/layers/linear_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "collectives/cost.h"
#include "layers/parameter.h"
#include "machine/base/clock.h"
#include "machine/device/gemm.h"
#include "suite/layers/layer_case.h"
#include "suite/reference/product_reference.h"

namespace suite {
namespace {

using collectives::Placement;
using collectives::Spread;
using harness::Profile;
using harness::vary;
using machine::Category;
using machine::Dtype;
using machine::Operation;
using machine::Shape;
using machine::Tensor;
using machine::Transport;

// Seeds of what is random, added to the run's.
struct Seed {
  enum : std::uint64_t { x = 1, d_y, weight_gradient, bias_gradient, rows };
};

std::string layer_name(LinearCut cut) {
  return cut == LinearCut::column ? "column_parallel_linear" : "row_parallel_linear";
}

Placement weight_placement(LinearCut cut) {
  return {.tp = Spread::sharded, .dim = cut == LinearCut::column ? 0 : 1};
}

double weight_stddev(int input_size) { return 1 / std::sqrt(static_cast<double>(input_size)); }

// A whole tensor as every rank's shard sees it: values depend on the global index alone.
std::vector<double> whole(const harness::Context& context, Dtype dtype, Shape shape,
                          std::uint64_t seed, double stddev) {
  const Tensor tensor(context.device, dtype, shape, Category::buffers);
  context.device.stream().kernels().fill_normal(tensor, seed, {}, 0, stddev);
  return to_doubles(tensor);
}

}  // namespace

harness::Sweep<LinearCase> linear_sweep(LinearCut cut) {
  using Case = LinearCase;
  using enum Profile;
  harness::Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &Case::ranks, 2)
      .axis("tokens", &Case::tokens, 64)
      .axis("input_size", &Case::input_size, 192)
      .axis("output_size", &Case::output_size, 384)
      .axis("bias", &Case::bias, true);
  if (cut == LinearCut::column)
    sweep.axis("gather_output", &Case::gather_output, false);
  else
    sweep.axis("input_is_parallel", &Case::input_is_parallel, true);
  sweep.axis("skip_bias_add", &Case::skip_bias_add, false).only([cut](const Case& c) {
    for (const auto& [axis, value] : {std::pair("tokens", c.tokens),
                                      {"input_size", c.input_size},
                                      {"output_size", c.output_size}})
      if (value < 1)
        throw harness::UsageError(fmt::format("--{}: {} is not at least 1", axis, value));
    if (c.skip_bias_add && !c.bias) return std::string("skip_bias_add requires bias on (got off)");
    try {
      collectives::Parameter::local_shape(layer_name(cut) + ".weight",
                                          {c.output_size, c.input_size}, weight_placement(cut),
                                          c.ranks);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  const auto dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16});
  const auto mpi = vary(&Case::transport, {Transport::mpi});
  const auto biases = vary(&Case::bias, {true, false}),
             skips = vary(&Case::skip_bias_add, {false, true});
  const bool column = cut == LinearCut::column;
  const auto whole =
      column ? vary(&Case::gather_output, {true}) : vary(&Case::input_is_parallel, {false});
  const auto either = column ? vary(&Case::gather_output, {false, true})
                             : vary(&Case::input_is_parallel, {true, false});
  sweep
      .slice({acceptance, paper}, "matrix",
             {dtypes, vary(&Case::ranks, {2, 3, 4, 8}), biases, either, skips})
      // Its own output and input are the whole ones.
      .slice({acceptance, paper}, "one rank", {dtypes, vary(&Case::ranks, {1}), biases, skips})
      .slice({acceptance, paper}, "transports", {mpi, dtypes, vary(&Case::ranks, {2, 3, 4, 8})})
      .slice({quick}, "usual", {vary(&Case::ranks, {1, 2})})
      .slice({quick}, "transports", {mpi, vary(&Case::bias, {false})})
      .slice({quick}, "edges",
             {vary(&Case::ranks, {3}), vary(&Case::tokens, {61}), vary(&Case::input_size, {201}),
              vary(&Case::output_size, {309}), whole})
      .slice({quick}, "edges",
             {vary(&Case::dtype, {Dtype::bfloat16}), vary(&Case::ranks, {3}),
              vary(&Case::tokens, {1}), vary(&Case::skip_bias_add, {true})})
      .slice(
          {smoke}, "smoke",
          {dtypes, vary(&Case::ranks, {1, 3}), vary(&Case::tokens, {1, 13}),
           vary(&Case::input_size, {21}), vary(&Case::output_size, {39}), biases, either, skips});
  return sweep;
}

template <class Layer>
Layer LinearUnit<Layer>::make(const layers::Context& context, const Case& c) {
  if constexpr (cut == LinearCut::column)
    return Layer(
        context, layer_name(cut), c.input_size, c.output_size,
        {.bias = c.bias, .gather_output = c.gather_output, .skip_bias_add = c.skip_bias_add});
  else
    return Layer(context, layer_name(cut), c.input_size, c.output_size,
                 {.bias = c.bias,
                  .input_is_parallel = c.input_is_parallel,
                  .skip_bias_add = c.skip_bias_add});
}

template <class Layer>
LinearUnit<Layer>::LinearUnit(const Case& c, harness::Context& context)
    : case_(c),
      context_(context),
      held_before_(held(context.device.ledger())),
      tp_(context.world, context.group, c.transport),
      layer_context_{context.device, tp_, c.dtype},
      layer_(make(layer_context_, c)) {
  const std::int64_t columns = cut == LinearCut::column && !c.gather_output ? c.ranks : 1,
                     rows = cut == LinearCut::row && c.input_is_parallel ? c.ranks : 1;
  const std::int64_t in = c.input_size / rows, out = c.output_size / columns;
  x_ = layer_context_.tensor({c.tokens, in}, Category::buffers);
  d_x_ = layer_context_.tensor({c.tokens, in}, Category::buffers);
  y_ = layer_context_.tensor({c.tokens, out}, Category::buffers);
  d_y_ = layer_context_.tensor({c.tokens, out}, Category::buffers);
  machine::Kernels& kernels = layer_context_.kernels();
  const std::int64_t rank = tp_.rank();
  kernels.fill_normal(x_, context.seed + Seed::x, {0, rows > 1 ? rank * in : 0, c.input_size}, 0,
                      1);
  kernels.fill_normal(d_y_, context.seed + Seed::d_y,
                      {0, columns > 1 ? rank * out : 0, c.output_size}, 0, 1);
  // Sums of order 1, and biases as large: one added too often is far outside the bounds.
  layer_.initialize({.seed = context.seed,
                     .weight_stddev = weight_stddev(c.input_size),
                     .residual_stddev = weight_stddev(c.input_size),
                     .bias_stddev = 1});
  start_gradients();
}

template <class Layer>
void LinearUnit<Layer>::start_gradients() {
  for (collectives::Parameter* parameter : layer_.parameters())
    zero_gradient(layer_context_, *parameter);
  machine::Kernels& kernels = layer_context_.kernels();
  kernels.fill_normal(layer_.weight().gradient, context_.seed + Seed::weight_gradient,
                      layer_.weight().region(tp_.rank()), 0, 1);
  if (!case_.bias) return;
  kernels.fill_normal(layer_.bias().gradient, context_.seed + Seed::bias_gradient,
                      layer_.bias().region(tp_.rank()), 0, 1);
}

template <class Layer>
void LinearUnit<Layer>::run() {
  layer_.forward(x_, y_);
  layer_.backward_input(d_y_, d_x_);
  layer_.backward_weights(x_, d_y_);
}

template <class Layer>
void LinearUnit<Layer>::judge(harness::Judge& judge) {
  judge_memory(judge);  // peaks so far: of the timed runs
  for (int repeat = 0; repeat < 2; ++repeat) {
    start_gradients();
    for (const Tensor& result : {y_, d_x_})
      layer_context_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
    tp_.link().reset_traffic();
    run();
    layer_context_.stream().synchronize();
    if (repeat == 0) judge_volume(judge);
    // Replicas: what is all-reduced or all-gathered, and the bias's gradient of a row-parallel one.
    const std::string shard = fmt::format("shard {} of ", tp_.rank());
    const bool column = cut == LinearCut::column;
    judge.same_bits((column && !gathers() ? shard : "") + "y", hash(y_));
    judge.same_bits((column || gathers() ? "" : shard) + "d_x", hash(d_x_));
    judge.same_bits(shard + "gradient of weight", hash(layer_.weight().gradient));
    if (case_.bias)
      judge.same_bits((column ? shard : "") + "gradient of bias", hash(layer_.bias().gradient));
  }
  judge_numerics(judge);
}

template <class Layer>
void LinearUnit<Layer>::judge_memory(harness::Judge& judge) const {
  const std::size_t in = static_cast<std::size_t>(case_.input_size),
                    out = static_cast<std::size_t>(case_.output_size),
                    tokens = static_cast<std::size_t>(case_.tokens),
                    tp = static_cast<std::size_t>(case_.ranks);
  const bool column = cut == LinearCut::column;
  const std::size_t parameters = in * out / tp + (!case_.bias ? 0 : column ? out / tp : out);
  const std::size_t cut_size = column ? out : in;  // of what is cut, or gathered
  const std::size_t values =                       // x, d_x, y, d_y
      2 * tokens * ((column ? in : out) + (gathers() ? cut_size : cut_size / tp));
  // Gathered: a rank's part, and all parts before they are put beside each other; for the gradient
  // of the bias the sums of all columns.
  const std::size_t gathered = tokens * (cut_size / tp + cut_size) * size_of(case_.dtype);
  const std::size_t sums =
      column && case_.bias ? out * size_of(collectives::gradient_dtype(case_.dtype)) : 0;
  std::size_t scratch = 0;  // CUDA tensors are staged through the host's memory, counted there
  if (context_.device.readable_by_host())
    for (const auto& [algorithm, call, count] : collectives_called())
      scratch += collectives::scratch_bytes(*algorithm, call, count, case_.dtype);
  const auto check = [&](Category category, std::size_t expected) {
    const std::size_t before = held_before_[static_cast<std::size_t>(category)];
    judge.memory(category, context_.device.ledger().peak(category) - before, expected);
  };
  check(Category::parameters, parameters * size_of(case_.dtype));
  check(Category::gradients, parameters * size_of(collectives::gradient_dtype(case_.dtype)));
  check(Category::activations, 0);
  check(Category::buffers,
        values * size_of(case_.dtype) + scratch + (gathers() ? std::max(gathered, sums) : 0));
}

// One all-reduce: of y [tokens, out] forward, or of d_x [tokens, in] backward; and of the other an
// all-gather, where it is gathered.
template <class Layer>
std::vector<LinearCollective> LinearUnit<Layer>::collectives_called() const {
  if (case_.ranks == 1) return {};
  std::vector<LinearCollective> found;
  const auto add = [&](Operation operation, std::int64_t count) {
    found.push_back(
        {&collectives::find_algorithm(
             operation, collectives::default_algorithm(
                            operation, case_.transport,
                            static_cast<std::size_t>(count) * size_of(case_.dtype), case_.ranks)),
         {tp_.rank(), case_.ranks},
         count});
  };
  add(Operation::all_reduce, reduced().size());
  if (gathers()) add(Operation::all_gather, other().size() / case_.ranks);
  return found;
}

template <class Layer>
void LinearUnit<Layer>::judge_volume(harness::Judge& judge) const {
  std::map<machine::TrafficLabel, machine::Traffic> expected;
  for (const auto& [algorithm, call, count] : collectives_called())
    expected[{algorithm->operation, case_.dtype}] =
        collectives::expected_traffic(*algorithm, call, count, case_.dtype);
  judge.volume(tp_.link(), expected);
}

namespace {

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
  const std::vector<double>& start;  // [whole cols], [whole rows, whole cols], or empty
  std::int64_t whole_cols;
  double bound;  // relative, of one element

  void run(harness::Judge& judge, std::string_view what, const Tensor& result, Part part,
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

template <class Layer>
void LinearUnit<Layer>::judge_numerics(harness::Judge& judge) {
  const std::int64_t tokens = case_.tokens, in = case_.input_size, out = case_.output_size;
  const bool column = cut == LinearCut::column;
  const Dtype dtype = case_.dtype, gradients = collectives::gradient_dtype(dtype);
  const std::uint64_t seed = context_.seed;
  const auto parameter = [&](const collectives::Parameter& p, double stddev) {
    return whole(context_, dtype, p.global_shape, layers::random_key(seed, p.name), stddev);
  };
  const std::vector<double> x = whole(context_, dtype, {tokens, in}, seed + Seed::x, 1),
                            d_y = whole(context_, dtype, {tokens, out}, seed + Seed::d_y, 1),
                            weight = parameter(layer_.weight(), weight_stddev(case_.input_size)),
                            bias = parameter(layer_.bias(), 1),
                            d_weight = whole(context_, gradients, {out, in},
                                             seed + Seed::weight_gradient, 1),
                            d_bias =
                                whole(context_, gradients, {out}, seed + Seed::bias_gradient, 1),
                            ones(static_cast<std::size_t>(tokens), 1), nothing;
  // tp cuts the sum of what is all-reduced: products of the parts, then tp - 1 additions. Fewer
  // terms a part, each stored once: the roundings that one term meets.
  const std::int64_t tp = case_.ranks, rank = tp_.rank();
  const std::int64_t part_in = column ? in : in / tp, part_out = column ? out / tp : out;
  const std::int64_t first_in = column ? 0 : rank * part_in,
                     first_out = column ? rank * part_out : 0;
  const int summed = static_cast<int>(tp) - 1;
  // What is gathered is compared as a whole.
  const std::int64_t columns_y = y_.cols(), columns_x = d_x_.cols();

  PartialCheck{{x.data(), in, 1},
               {weight.data(), 1, in},
               in,
               adds_bias() ? bias : nothing,
               out,
               product_bound(part_in, column ? 1 : summed + 1, dtype)}
      .run(judge, "y", y_, {0, gathers() ? 0 : first_out, tokens, columns_y}, seed + Seed::rows);
  PartialCheck{{d_y.data(), out, 1},
               {weight.data(), in, 1},
               out,
               nothing,
               in,
               product_bound(part_out, column ? summed : 0, dtype)}
      .run(judge, "d_x", d_x_, {0, gathers() ? 0 : first_in, tokens, columns_x}, seed + Seed::rows);
  PartialCheck{{d_y.data(), 1, out},
               {x.data(), in, 1},
               tokens,
               d_weight,
               in,
               product_bound(tokens, 1, gradients)}
      .run(judge, "gradient of weight", layer_.weight().gradient,
           {first_out, first_in, part_out, part_in}, seed + Seed::rows);
  if (!case_.bias) return;
  // Of gathered columns summed by themselves and then added.
  PartialCheck{{ones.data(), tokens, 1},
               {d_y.data(), out, 1},
               tokens,
               d_bias,
               out,
               product_bound(tokens, gathers() ? 2 : 1, gradients)}
      .run(judge, "gradient of bias", layer_.bias().gradient, {0, first_out, 1, part_out},
           seed + Seed::rows);
}

template <class Layer>
harness::Cost LinearUnit<Layer>::cost() const {
  const double values = static_cast<double>(x_.bytes() + y_.bytes());
  const double elements = static_cast<double>(case_.input_size) * case_.output_size / case_.ranks;
  const double weight = elements * static_cast<double>(size_of(case_.dtype)),
               gradient = elements *
                          static_cast<double>(size_of(collectives::gradient_dtype(case_.dtype)));
  harness::Cost cost;
  cost.flops = 3 * 2 * case_.tokens * elements;
  cost.flops_dtype = case_.dtype;
  // Read plus written: three products, each of x- and y-like matrices and the weight or its
  // gradient; then the all-reduce: a share of all inputs is read and its sum written, the others'
  // sums are read and written.
  cost.memory_bytes = 3 * values + 2 * weight + 2 * gradient;
  if (const double n = case_.ranks; n > 1) {
    const double whole = static_cast<double>(reduced().bytes());
    cost.memory_bytes += whole + whole / n + 2 * whole * (n - 1) / n;
    if (gathers()) cost.memory_bytes += 4 * static_cast<double>(other().bytes());
  }
  cost.working_set_bytes = 2 * values + weight + gradient;
  cost.tokens = case_.tokens;
  return cost;
}

// Nine more steps in their parts, of which the median is shown. Communication is what the call with
// the all-reduce takes beyond its product, waiting for other ranks included.
template <class Layer>
void LinearUnit<Layer>::describe(harness::Description& description) {
  const auto timed = [&](auto work) {
    const double begin = machine::steady_s();
    work();
    layer_context_.stream().synchronize();
    return machine::steady_s() - begin;
  };
  const auto own_columns = [](const Tensor& tensor, std::int64_t columns) {
    machine::Matrix own = matrix(tensor);
    own.cols = columns;  // any so many: only the time counts
    return own;
  };
  const auto product = [&] {
    const machine::Matrix weight = matrix(layer_.weight().value);
    if (cut == LinearCut::column) {
      gemm(layer_context_.stream(), own_columns(d_y_, weight.rows), weight, matrix(d_x_));
    } else {
      gemm(layer_context_.stream(), own_columns(x_, weight.cols), weight.transposed(), matrix(y_));
      if (adds_bias()) layer_context_.kernels().add_bias(y_, layer_.bias().value, y_);
    }
  };
  struct Parts {
    double forward, backward_input, backward_weights, product;
    double step() const { return forward + backward_input + backward_weights; }
  };
  std::array<Parts, 9> steps{};
  for (Parts& parts : steps) {
    tp_.barrier();
    parts.forward = timed([&] { layer_.forward(x_, y_); });
    parts.backward_input = timed([&] { layer_.backward_input(d_y_, d_x_); });
    parts.backward_weights = timed([&] { layer_.backward_weights(x_, d_y_); });
    parts.product = timed(product);
  }
  const auto median = steps.begin() + steps.size() / 2;
  std::nth_element(steps.begin(), median, steps.end(),
                   [](const Parts& a, const Parts& b) { return a.step() < b.step(); });
  double& with_all_reduce = cut == LinearCut::column ? median->backward_input : median->forward;
  double communication = 0;
  if (case_.ranks > 1) {
    communication = std::max(0.0, with_all_reduce - median->product);
    with_all_reduce -= communication;
  }
  description.breakdown = {{"forward", median->forward},
                           {"backward_input", median->backward_input},
                           {"backward_weights", median->backward_weights},
                           {"communication", communication}};
}

template class LinearUnit<layers::ColumnParallelLinear>;
template class LinearUnit<layers::RowParallelLinear>;

}  // namespace suite
