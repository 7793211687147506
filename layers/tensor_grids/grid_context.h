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

// Returns the ranks of `all`, the ranks of the grid in its order, that differ from this one along
// the axis only.
machine::Group grid_group(const machine::Group& all, const TensorGrid& grid, GridAxis axis);

// A group of one rank has no communicator.
class GridGroups {
 public:
  using OfAxes = std::array<collectives::Communicator*, 3>;  // by axis; null for one rank

  // all: the ranks of the grid, in its order. Collective over `all`.
  GridGroups(machine::World& world, const machine::Group& all, const TensorGrid& grid,
             machine::Transport transport);
  // With communicators of the caller, which outlive this object.
  GridGroups(const TensorGrid& grid, int rank, const OfAxes& groups)
      : grid_(grid), rank_(rank), groups_(groups) {}

  const TensorGrid& grid() const { return grid_; }
  int rank() const { return rank_; }
  GridPlace place() const { return grid_.place(rank_); }
  // Returns null for a group of one rank.
  collectives::Communicator* find(GridAxis axis) const {
    return groups_[static_cast<std::size_t>(axis)];
  }
  std::vector<collectives::Communicator*> all() const;

 private:
  TensorGrid grid_;
  int rank_;
  OfAxes groups_{};
  std::vector<std::unique_ptr<collectives::Communicator>> own_;
};

struct GridContext {
  machine::Device& device;
  const GridGroups& groups;
  machine::Dtype dtype = machine::Dtype::float32;
  GridMethod method = GridMethod::summa;

  machine::Stream& stream() const { return device.stream(); }
  machine::Kernels& kernels() const { return device.stream().kernels(); }
  // Returns the dtype of gradients and of statistics of rows: float, or double for double.
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

// How a matrix is stored: as the whole one is, or, of a linear layer's weights, as [in, out], while
// the global parameter is [out, in], as in layers/column_parallel_linear.h.
enum class StoredAs : unsigned char { whole, transposed };

// A rank's block of a parameter. `value` and `gradient` are empty on ranks that do not store it.
struct GridParameter : collectives::Parameter {
  machine::Shape whole;  // [in, out], or [1, out] of a vector
  GridBlock block;

  GridParameter(const TensorGrid& grid, std::string name, machine::Shape whole,
                const GridBlock& block, collectives::Role role, StoredAs stored = StoredAs::whole);

  bool held() const { return block.size() > 0; }
  // Allocates the value, and fills it by the index in the whole parameter, so that every grid
  // starts from the same numbers.
  void initialize(const GridContext& context, std::uint64_t seed, double stddev);
  void zero_gradient(const GridContext& context);  // allocates it first
};
using GridParameters = std::vector<GridParameter*>;

}  // namespace layers
