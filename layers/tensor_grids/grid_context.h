#pragma once
// The context of a rank's layers over a grid: the device, the type of the values, the grid, and the
// communicators of its row, column and depth.
//
//   GridGroups groups(world, all, tensor_grid(TensorParallelMode::two_d, 4, 1), transport);
//   GridContext context{world.device(), groups, Dtype::bfloat16};
//   GridLinear fc1(context, "fc1", {tokens, in, out});

#include <array>
#include <memory>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/placement.h"
#include "layers/tensor_grids/plans/grid_plan.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace layers {

// A group of one rank has no communicator.
class GridGroups {
 public:
  // all: the ranks of the grid, in its order. Collective over `all`.
  GridGroups(machine::World& world, const machine::Group& all, const TensorGrid& grid,
             machine::Transport transport);

  const TensorGrid& grid() const { return grid_; }
  int rank() const { return rank_; }
  GridPlace place() const { return grid_.place(rank_); }
  // Returns null for a group of one rank.
  collectives::Communicator* find(GridAxis axis) const {
    return groups_[static_cast<std::size_t>(axis)].get();
  }
  std::vector<collectives::Communicator*> all() const;

 private:
  TensorGrid grid_;
  int rank_;
  std::array<std::unique_ptr<collectives::Communicator>, 3> groups_;
};

struct GridContext {
  machine::Device& device;
  const GridGroups& groups;
  machine::Dtype dtype = machine::Dtype::float32;
  GridMethod method = GridMethod::summa;

  machine::Stream& stream() const { return device.stream(); }
  machine::Kernels& kernels() const { return device.stream().kernels(); }
  // The dtype of gradients and of statistics of rows: float, or double for double.
  machine::Dtype accumulator() const { return collectives::gradient_dtype(dtype); }
  const TensorGrid& grid() const { return groups.grid(); }
  int rank() const { return groups.rank(); }
  machine::Tensor tensor(machine::Shape shape, machine::Category category) const {
    return machine::Tensor(device, dtype, shape, category);
  }
  machine::Tensor block_tensor(const GridBlock& block, machine::Category category) const {
    return tensor({block.rows, block.cols}, category);
  }
};

// A rank's block of a parameter. `value` and `gradient` are empty on ranks that do not store it.
struct GridParameter {
  std::string name;
  machine::Shape whole;  // [in, out], or [1, out] of a bias
  GridBlock block;
  machine::Tensor value, gradient;

  bool held() const { return block.size() > 0; }
  // Allocates the value, and fills it by the index in the whole parameter, so that every grid
  // starts from the same numbers.
  void initialize(const GridContext& context, std::uint64_t seed, double stddev);
  void zero_gradient(const GridContext& context);  // allocates it first
};
using GridParameters = std::vector<GridParameter*>;

}  // namespace layers
