#include "suite/layers/tensor_grids/grid_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "machine/device/random.h"
#include "machine/link/connect.h"

namespace suite {

using layers::GridAxis, layers::GridBlock, layers::GridParameter, layers::PairPlace;
using layers::TensorGrid;

namespace {

constexpr harness::Counter of_groups[] = {
    {"wire_bytes_tp_row", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends over its row of a tensor-parallel grid"},
    {"wire_bytes_tp_column", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends over its column of a tensor-parallel grid"},
    {"wire_bytes_tp_depth", "B", harness::Better::neither, harness::Nature::exact,
     "most bytes that a rank sends over the depth of a tensor-parallel grid"}};
const bool of_groups_known = harness::add_counters(of_groups);

layers::GridMethod method_of(const GridCase& c) {
  return c.product == "cannon" ? layers::GridMethod::cannon : layers::GridMethod::summa;
}

}  // namespace

TensorGrid GridCase::grid() const {
  return layers::tensor_grid(layers::tensor_parallel_mode(mode), ranks, depth);
}

Sweep<GridCase> grid_axes(bool has_products) {
  using Case = GridCase;
  Sweep<Case> sweep;
  sweep.axis("transport", &Case::transport, Transport::shared_memory)
      .axis("dtype", &Case::dtype, Dtype::float32,
            {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
      .axis("ranks", &Case::ranks, 4)
      .axis("tensor-parallel-mode", &Case::mode, "2d", {"1d", "2d", "2.5d", "3d"})
      .axis("tensor-parallel-depth", &Case::depth, 1);
  if (has_products)
    sweep.axis("tensor-parallel-product", &Case::product, "summa", {"summa", "cannon"});
  return sweep;
}

std::string why_no_grid(const GridCase& c, const std::vector<GridLayer>& layers) {
  const layers::GridSizeNames& names = layers.front().names;
  for (const auto& [axis, value] : {std::pair(names.tokens, c.tokens),
                                    {names.in, c.input_size},
                                    {names.out, c.output_size},
                                    {"micro-batch-size", c.micro_batch_size},
                                    {"num-attention-heads", c.num_attention_heads}})
    if (value < 1)
      throw harness::UsageError(fmt::format("--{} is {}; expected at least 1", axis, value));
  try {
    const TensorGrid grid = c.grid();
    for (const auto& [place, of, exchanged] : layers) {
      layers::grid_plan(grid, place, layers::GridProduct::ab, method_of(c));
      std::int64_t in = c.input_size, out = c.output_size;
      if (exchanged) std::swap(in, out);
      if (std::string why = why_not_divided(grid, place, {c.tokens, in, out}, of); !why.empty())
        return why;
    }
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return {};
}

void add_grid_slices(Sweep<GridCase>& sweep, const std::vector<harness::Variation>& small,
                     bool has_products) {
  using Case = GridCase;
  using Variations = std::vector<harness::Variation>;
  using enum Profile;
  const auto dtypes = vary(&Case::dtype, {Dtype::float32, Dtype::bfloat16});
  const auto bfloat16 = vary(&Case::dtype, {Dtype::bfloat16});
  const auto grid = [](const char* mode, std::vector<int> ranks, int depth = 1) -> Variations {
    return {vary(&Case::mode, {mode}), vary(&Case::ranks, std::move(ranks)),
            vary(&Case::depth, {depth})};
  };
  const auto slice = [&](std::vector<Profile> profiles, const char* name, Variations variations,
                         const Variations& more) {
    variations.insert(variations.end(), more.begin(), more.end());
    sweep.slice(std::move(profiles), name, variations);
  };
  slice({quick}, "grids", grid("1d", {4}), {});
  slice({quick}, "grids", grid("2d", {4}), {dtypes});
  if (has_products) slice({quick}, "grids", grid("2d", {4}), {vary(&Case::product, {"cannon"})});
  slice({quick}, "grids", grid("2.5d", {3}, 3), {vary(&Case::transport, {Transport::mpi})});

  const auto both = vary(&Case::transport, {Transport::shared_memory, Transport::mpi});
  slice({acceptance, paper}, "1d", grid("1d", {1, 4, 8}), {dtypes, both});
  slice({acceptance, paper}, "2d", grid("2d", {1, 4}), {dtypes, both});
  if (has_products)
    slice({acceptance, paper}, "2d", grid("2d", {4}),
          {dtypes, both, vary(&Case::product, {"cannon"})});
  slice({acceptance, paper}, "2.5d", grid("2.5d", {8}, 2), {dtypes, both});
  slice({acceptance, paper}, "2.5d", grid("2.5d", {4}, 4), {dtypes, both});
  slice({acceptance, paper}, "3d", grid("3d", {1, 8}), {dtypes, both});

  const auto smoke_case = [&](Variations one, const Variations& more) {
    one.insert(one.end(), small.begin(), small.end());
    slice({smoke}, "smoke", one, more);
  };
  smoke_case(grid("1d", {3}), {});
  smoke_case(grid("2d", {1}), {bfloat16});
  smoke_case(grid("2d", {4}), {bfloat16});
  smoke_case(grid("2d", {9}), {});
  if (has_products) smoke_case(grid("2d", {9}), {vary(&Case::product, {"cannon"}), bfloat16});
  smoke_case(grid("2.5d", {8}, 2), {});
  smoke_case(grid("2.5d", {3}, 3), {bfloat16});
  smoke_case(grid("3d", {8}), {});
}

layers::GridLinearCase cost_case(const GridCase& c, int rank, PairPlace layer, std::int64_t in,
                                 std::int64_t out) {
  const TensorGrid grid = c.grid();
  return {.mode = grid.mode,
          .q = grid.columns,
          .depth = c.depth,
          .place = grid.place(rank),
          .cannon = c.product == "cannon",
          .layer = layer,
          .tokens = c.tokens,
          .in = in,
          .out = out,
          .bias = c.bias,
          .dtype = c.dtype};
}

GridClaims claims_of_pair(const GridCase& c, int rank, std::int64_t in, std::int64_t width,
                          std::int64_t inner, std::int64_t out) {
  const auto joined = [](const layers::GridPass& one, const layers::GridPass& other) {
    layers::GridPass all = one;
    all.calls.insert(all.calls.end(), other.calls.begin(), other.calls.end());
    for (const auto& [group, labels] : other.messages)
      for (const auto& [label, traffic] : labels) all.messages[group][label] += traffic;
    return all;
  };
  const layers::GridLinearCost first = layers::grid_linear_cost(
                                   cost_case(c, rank, PairPlace::first, in, width)),
                               second = layers::grid_linear_cost(
                                   cost_case(c, rank, PairPlace::second, inner, out));
  GridClaims claims{.passes = {joined(first.forward, second.forward),
                               joined(second.backward_input, first.backward_input),
                               joined(second.backward_weights, first.backward_weights)},
                    .parameters = first.parameters + second.parameters};
  // A rank's block between the products. 1d splits its columns, the others also its rows.
  const auto bytes = [&](std::int64_t columns) {
    return static_cast<std::size_t>(c.tokens * columns / c.ranks) * size_of(c.dtype);
  };
  claims.passes[0].buffers = std::max(first.forward.buffers, second.forward.buffers);
  // Backward holds the gradient of the first output, and that of the second input until it is used.
  // In 3d it keeps the gathered gradients of both outputs, and the own one only until it is
  // gathered.
  claims.passes[1].buffers = bytes(width) + second.kept +
                             std::max(bytes(inner) + second.backward_input.buffers,
                                      first.kept + first.backward_input.buffers);
  claims.passes[2].buffers =
      (first.kept > 0 ? 0 : bytes(width)) + second.kept + first.kept +
      std::max(second.backward_weights.buffers, first.backward_weights.buffers);
  claims.flops = 3.0 * 2 * c.tokens * static_cast<double>(in * width + inner * out) / c.ranks;
  return claims;
}

GridShell::GridShell(const Case& c, Context& context, std::int64_t columns)
    : case_(c),
      context_(context),
      in_(c.input_size),
      out_(columns),
      all_(context.world, context.group, c.transport),
      groups_(context.world, context.group, c.grid(), c.transport),
      layers_{context.device, groups_, c.dtype, method_of(c)},
      memory_(context.device.ledger()) {}

std::string GridShell::why_not(const Case& c, const Context& context) {
  return machine::why_not(context.world, context.group, c.transport);
}

double GridShell::weight_stddev(const GridParameter& parameter) {
  return parameter.whole[0] == 1 ? 1 : 1 / std::sqrt(static_cast<double>(parameter.whole[0]));
}

void GridShell::start(std::unique_ptr<JudgedGridLayer> layer, const GridClaims& claims) {
  layer_ = std::move(layer);
  claims_ = claims;
  const auto random = [&](const GridBlock& block, std::uint64_t seed, std::int64_t columns) {
    Tensor tensor = layers_.block_tensor(block, Category::buffers);
    layers_.kernels().fill_normal(tensor, seed, {block.row, block.col, columns}, 0, 1);
    return tensor;
  };
  x_ = random(layer_->input(), context_.seed + 1, in_);
  d_y_ = random(layer_->output(), context_.seed + 2, out_);
  d_x_ = layers_.tensor(x_.shape(), Category::buffers);
  y_ = layers_.tensor(d_y_.shape(), Category::buffers);
  for (GridParameter* parameter : layer_->parameters())
    parameter->initialize(layers_, context_.seed, weight_stddev(*parameter));
  start_gradients();
  context_.device.stream().synchronize();
  memory_.reset();
}

void GridShell::start_gradients() {
  for (GridParameter* parameter : layer_->parameters()) {
    parameter->zero_gradient(layers_);
    if (parameter->held()) layers_.kernels().fill(parameter->gradient, earlier_gradient);
  }
}

// Old results would hide a pass that writes none.
void GridShell::spoil_results() {
  for (const Tensor& result : {y_, d_x_})
    layers_.kernels().fill(result, std::numeric_limits<double>::quiet_NaN());
}

void GridShell::pass(GridPassName name) {
  switch (name) {
    case GridPassName::forward:
      return layer_->forward(x_, y_);
    case GridPassName::backward_input:
      return layer_->backward_input(d_y_, d_x_);
    case GridPassName::backward_weights:
      return layer_->backward_weights();
  }
}

void GridShell::run() {
  for (std::size_t i = 0; i < grid_passes.size(); ++i) pass(static_cast<GridPassName>(i));
}

std::size_t GridShell::passed_bytes() const {
  return x_.bytes() + y_.bytes() + d_y_.bytes() + d_x_.bytes();
}

collectives::CallsCost GridShell::calls_of(const layers::GridPass& pass) const {
  collectives::CallsCost cost;
  for (const collectives::CollectiveCalls& calls : pass.calls)
    for (const GridAxis axis : layers::all_grid_axes)
      if (calls.group == group_name(axis))
        cost.add(calls, collectives::usual_algorithm(calls, case_.transport),
                 groups_.place().along(axis));
  return cost;
}

void GridShell::judge_memory(Judge& judge) {
  layers::GridPass all;
  std::size_t buffers = 0;
  for (const layers::GridPass& one : claims_.passes) {
    all.calls.insert(all.calls.end(), one.calls.begin(), one.calls.end());
    buffers = std::max(buffers, one.buffers);
  }
  // Staged collectives hold their scratch in host memory, which this device does not count.
  const std::size_t scratch = all_.link().stages(context_.device) ? 0 : calls_of(all).scratch();
  const auto parameters = static_cast<std::size_t>(claims_.parameters);
  const auto check = [&](Category category, std::size_t expected) {
    judge.memory(category, memory_.peak(category), expected);
  };
  check(Category::parameters, parameters * size_of(case_.dtype));
  check(Category::gradients, parameters * size_of(collectives::gradient_dtype(case_.dtype)));
  check(Category::optimizer, 0);
  check(Category::activations, claims_.saved);
  check(Category::buffers, passed_bytes() + buffers + scratch);
}

void GridShell::reset_traffic() {
  all_.link().reset_traffic();
  for (collectives::Communicator* group : groups_.all()) group->link().reset_traffic();
}

void GridShell::judge_volume(Judge& judge, GridPassName name) {
  const layers::GridPass& claim = claims_.passes[static_cast<std::size_t>(name)];
  layers::GridMessages expected = calls_of(claim).traffic();
  for (const auto& [group, labels] : claim.messages)
    for (const auto& [label, traffic] : labels) expected[group][label] += traffic;
  judge.volume(all_.link(), {});  // the layers send over their own groups only
  for (collectives::Communicator* group : groups_.all()) {
    judge.volume(group->link(), expected[group->group().name]);
    sent_["wire_bytes_" + group->group().name] +=
        static_cast<double>(group->link().total().bytes_sent);
  }
}

// Every rank has its own blocks. Ranks of a depth of 2.5d have copies of the parameters.
void GridShell::judge_bits(Judge& judge) {
  const auto own = [&](std::string_view what, const Tensor& tensor) {
    judge.same_bits(fmt::format("{} of rank {}", what, groups_.rank()), hash(tensor));
  };
  own("y", y_);
  own("d_x", d_x_);
  for (const GridParameter* parameter : layer_->parameters())
    if (parameter->held())
      judge.same_bits(fmt::format("gradient of {} at row {}, column {}", parameter->name,
                                  parameter->block.row, parameter->block.col),
                      hash(parameter->gradient));
}

void GridShell::judge(Judge& judge) {
  judge_memory(judge);  // before the judge's runs, so peaks are those of the timed runs
  for (int repeat = 0; repeat < 2; ++repeat) {
    start_gradients();
    spoil_results();
    for (std::size_t i = 0; i < grid_passes.size(); ++i) {
      const auto name = static_cast<GridPassName>(i);
      reset_traffic();
      pass(name);
      context_.device.stream().synchronize();
      if (repeat > 0) continue;
      judge_volume(judge, name);
      judge.memory(fmt::format("after {}", grid_passes[i]), Category::activations,
                   memory_.current(Category::activations),
                   name == GridPassName::forward          ? claims_.saved
                   : name == GridPassName::backward_input ? claims_.saved_for_weights
                                                          : 0);
    }
    judge_bits(judge);
  }
  judge_numerics(judge);
}

void GridShell::describe(Description& description) {
  for (const harness::Counter& counter : of_groups) {
    const double mine = sent_[std::string(counter.name)];
    const double most = std::ranges::max(context_.world.all_gather(context_.group, mine));
    if (most > 0) description.set(counter.name, most);
  }
}

std::vector<double> GridShell::draw(std::uint64_t seed, std::int64_t rows, std::int64_t cols,
                                    double stddev) const {
  const Tensor tensor = layers_.tensor({rows, cols}, Category::buffers);
  layers_.kernels().fill_normal(tensor, seed, {0, 0, cols}, 0, stddev);
  return to_doubles(tensor);
}

std::vector<double> GridShell::draw(const GridParameter& parameter) const {
  return draw(machine::random_key(context_.seed, parameter.name), parameter.whole[0],
              parameter.whole[1], weight_stddev(parameter));
}

std::vector<double> GridShell::part(const std::vector<double>& whole, std::int64_t columns,
                                    const GridBlock& block) {
  std::vector<double> own;
  for (std::int64_t row = block.row; row < block.row + block.rows; ++row) {
    const auto begin = whole.begin() + row * columns + block.col;
    own.insert(own.end(), begin, begin + block.cols);
  }
  return own;
}

// Each pass reads its inputs and writes its results. Received operands and sums are written once
// and read once. Two passes read the parameters, one reads and writes the gradients.
Cost GridShell::cost() const {
  const double parameters = static_cast<double>(claims_.parameters),
               passed = static_cast<double>(passed_bytes()),
               saved = static_cast<double>(claims_.saved);
  const auto value = static_cast<double>(size_of(case_.dtype)),
             gradient = static_cast<double>(size_of(collectives::gradient_dtype(case_.dtype)));
  Cost cost;
  cost.flops = claims_.flops;
  cost.flops_dtype = case_.dtype;
  cost.transport = case_.transport;
  for (const layers::GridPass& one : claims_.passes) {
    layers::GridMessages all = calls_of(one).traffic();
    for (const auto& [group, labels] : one.messages)
      for (const auto& [label, traffic] : labels) all[group][label] += traffic;
    for (const auto& [group, labels] : all)
      for (const auto& [label, traffic] : labels)
        cost.wire_bytes += static_cast<double>(traffic.bytes_received);
  }
  cost.memory_bytes = (claims_.reads_parameters ? 1.5 : 1) * passed + 2 * saved +
                      (claims_.reads_parameters ? 2 * parameters * (value + gradient) : 0) +
                      2 * cost.wire_bytes;
  cost.working_set_bytes = passed + saved + parameters * (value + gradient);
  cost.tokens = static_cast<double>(case_.tokens);
  return cost;
}

}  // namespace suite
