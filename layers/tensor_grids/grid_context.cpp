#include "layers/tensor_grids/grid_context.h"

#include <stdexcept>
#include <utility>

#include "machine/base/reject.h"
#include "machine/device/random.h"

namespace layers {

machine::Group grid_group(const machine::Group& all, const TensorGrid& grid, GridAxis axis) {
  machine::Group group{std::string(group_name(axis)), {}, grid.place(all.index).along(axis)};
  for (const int rank : grid.members(all.index, axis))
    group.members.push_back(all.members[static_cast<std::size_t>(rank)]);
  return group;
}

GridGroups::GridGroups(machine::World& world, const machine::Group& all, const TensorGrid& grid,
                       machine::Transport transport)
    : grid_(grid), rank_(all.index) {
  if (all.size() != grid.ranks())
    machine::reject("a grid of {} ranks requires as many ranks (got {})", grid.ranks(), all.size());
  for (const GridAxis axis : all_grid_axes) {
    if (grid.size(axis) == 1) continue;
    own_.push_back(
        std::make_unique<collectives::Communicator>(world, grid_group(all, grid, axis), transport));
    groups_[static_cast<std::size_t>(axis)] = own_.back().get();
  }
}

std::vector<collectives::Communicator*> GridGroups::all() const {
  std::vector<collectives::Communicator*> found;
  for (collectives::Communicator* const group : groups_)
    if (group) found.push_back(group);
  return found;
}

GridParameter::GridParameter(const TensorGrid& grid, std::string name, machine::Shape whole,
                             const GridBlock& block, collectives::Role role, StoredAs stored)
    : whole(whole), block(block) {
  using enum collectives::Role;
  const bool transposed = stored == StoredAs::transposed, vector = role == bias || role == gain;
  this->name = std::move(name);
  this->role = role;
  weight_decay = !vector;
  global_shape = vector       ? machine::Shape{whole[1]}
                 : transposed ? machine::Shape{whole[1], whole[0]}
                              : whole;
  placement.block =
      transposed ? collectives::PlacedBlock{block.col, block.row, block.cols, block.rows, true, 1}
                 : collectives::PlacedBlock{block.row, block.col, block.rows, block.cols, false, 1};
  // The layers of 2.5d have copies of the parameters.
  if (grid.mode == TensorParallelMode::two_and_a_half_d) placement.block->copies = grid.depth;
}

void GridParameter::initialize(const GridContext& context, std::uint64_t seed, double stddev) {
  if (!held()) return;
  if (!value) value = context.block_tensor(block, machine::Category::parameters);
  context.kernels().fill_normal(value, machine::random_key(seed, name),
                                {block.row, block.col, whole[1]}, 0, stddev);
}

void GridParameter::zero_gradient(const GridContext& context) {
  if (!held()) return;
  if (!gradient)
    gradient = machine::Tensor(context.device, context.accumulator(), value.shape(),
                               machine::Category::gradients);
  context.kernels().fill(gradient, 0);
}

}  // namespace layers
