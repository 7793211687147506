#include "layers/tensor_grids/grid_context.h"

#include <stdexcept>

#include "machine/base/reject.h"
#include "machine/device/random.h"

namespace layers {

GridGroups::GridGroups(machine::World& world, const machine::Group& all, const TensorGrid& grid,
                       machine::Transport transport)
    : grid_(grid), rank_(all.index) {
  if (all.size() != grid.ranks())
    machine::reject("a grid of {} ranks requires as many ranks (got {})", grid.ranks(), all.size());
  for (const GridAxis axis : all_grid_axes) {
    if (grid.size(axis) == 1) continue;
    machine::Group group{std::string(group_name(axis)), {}, place().along(axis)};
    for (const int rank : grid.members(rank_, axis))
      group.members.push_back(all.members[static_cast<std::size_t>(rank)]);
    groups_[static_cast<std::size_t>(axis)] =
        std::make_unique<collectives::Communicator>(world, group, transport);
  }
}

std::vector<collectives::Communicator*> GridGroups::all() const {
  std::vector<collectives::Communicator*> found;
  for (const auto& group : groups_)
    if (group) found.push_back(group.get());
  return found;
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
