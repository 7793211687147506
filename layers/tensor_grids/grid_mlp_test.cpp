// Every grid of ranks gives the results of one rank.

#include "layers/tensor_grids/grid_mlp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "machine/world/world.h"

namespace layers {
namespace {

using machine::Category, machine::Tensor;

constexpr std::int64_t tokens = 16, hidden = 16, ffn = 32;

// A whole matrix, from the blocks of the ranks. Copies of a block have the same bits.
struct Whole {
  std::int64_t cols = 0;
  std::map<std::int64_t, double> values{};  // by index
  void add(const Tensor& own, const GridBlock& block) {
    const std::vector<double> part = machine::to_doubles(own);
    for (std::int64_t i = 0; i < block.size(); ++i) {
      const std::int64_t at = (block.row + i / block.cols) * cols + block.col + i % block.cols;
      const auto [there, is_new] = values.emplace(at, part[static_cast<std::size_t>(i)]);
      EXPECT_TRUE(is_new || there->second == part[static_cast<std::size_t>(i)]) << "copies differ";
    }
  }
};
using Results = std::map<std::string, Whole>;

// Two micro-batches, so that gradients are added.
Results run(const TensorGrid& grid, GridMethod method = GridMethod::summa) {
  Results all;
  std::mutex mutex;
  machine::run_ranks(grid.ranks(), [&](machine::World& world) {
    world.device().set_threads(1);
    GridGroups groups(world, world.group(), grid, machine::Transport::shared_memory);
    const GridContext context{world.device(), groups, machine::Dtype::float64, method};
    GridMlp mlp(context, "mlp", tokens, hidden, ffn);
    for (GridParameter* parameter : mlp.parameters()) {
      parameter->initialize(context, 7, 0.3);
      parameter->zero_gradient(context);
    }
    const auto tensor = [&](const GridBlock& block, std::uint64_t seed) {
      Tensor own = context.block_tensor(block, Category::buffers);
      context.kernels().fill_normal(own, seed, {block.row, block.col, hidden}, 0, 1);
      return own;
    };
    const Tensor y = tensor(mlp.output(), 0), d_x = tensor(mlp.input(), 0);
    for (const std::uint64_t seed : {1, 2}) {
      GridMlp::Saved saved;
      mlp.forward(tensor(mlp.input(), seed), y, saved, Category::activations);
      mlp.backward_input(tensor(mlp.output(), seed + 10), d_x, saved, Category::activations);
      mlp.backward_weights(saved);
      EXPECT_FALSE(saved.x || saved.inner || saved.active || saved.all_d_y || saved.all_d_inner);
    }
    const std::lock_guard lock(mutex);
    const auto add = [&](const std::string& name, const Tensor& own, const GridBlock& block,
                         std::int64_t cols) {
      all[name].cols = cols;
      all[name].add(own, block);
    };
    add("y", y, mlp.output(), hidden);
    add("d_x", d_x, mlp.input(), hidden);
    for (const GridParameter* parameter : mlp.parameters())
      if (parameter->held())
        add(parameter->name, parameter->gradient, parameter->block, parameter->whole[1]);
  });
  return all;
}

TEST(GridMlp, GivesTheResultsOfOneRank) {
  using enum TensorParallelMode;
  const Results want = run(tensor_grid(one_d, 1, 1));
  ASSERT_EQ(want.size(), 6U);
  for (const auto& [grid, method] : {std::pair(tensor_grid(one_d, 4, 1), GridMethod::summa),
                                     {tensor_grid(two_d, 4, 1), GridMethod::summa},
                                     {tensor_grid(two_d, 16, 1), GridMethod::cannon},
                                     {tensor_grid(two_and_a_half_d, 8, 2), GridMethod::summa},
                                     {tensor_grid(three_d, 8, 1), GridMethod::summa}}) {
    const Results got = run(grid, method);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, whole] : want) {
      SCOPED_TRACE(fmt::format("{} on {} ranks: {}", layers::name(grid.mode), grid.ranks(), name));
      ASSERT_EQ(got.at(name).values.size(), whole.values.size());
      double error = 0, size = 0;
      for (const auto& [at, value] : whole.values) {
        error += std::pow(got.at(name).values.at(at) - value, 2);
        size += value * value;
      }
      EXPECT_LE(std::sqrt(error), 1e-14 * std::sqrt(size));
    }
  }
}

TEST(GridMlp, RejectsSizesThatTheGridDoesNotDivide) {
  machine::run_ranks(1, [](machine::World& world) {
    EXPECT_THROW(GridGroups(world, world.group(), tensor_grid(TensorParallelMode::two_d, 4, 1),
                            machine::Transport::shared_memory),
                 std::invalid_argument);
  });
  machine::run_ranks(4, [](machine::World& world) {
    GridGroups groups(world, world.group(), tensor_grid(TensorParallelMode::two_d, 4, 1),
                      machine::Transport::shared_memory);
    const GridContext context{world.device(), groups};
    EXPECT_THROW(GridMlp(context, "mlp", 16, 15, 32), std::invalid_argument);
  });
}

}  // namespace
}  // namespace layers
