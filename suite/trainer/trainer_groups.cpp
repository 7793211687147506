// The groups of a trainer: their ranks, links and communicators.

#include <memory>
#include <string>

#include "machine/link/connect.h"
#include "suite/configuration/group_algorithms.h"
#include "suite/trainer/trainer.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace suite {

using machine::Axis;

std::vector<machine::Link*> Trainer::Group::links() const {
  std::vector<machine::Link*> all;
  if (communicator) all.push_back(&communicator->link());
  if (gradients) all.push_back(gradients.get());
  return all;
}

collectives::Communicator* Trainer::communicator(std::string_view name) const {
  for (const Group& group : groups_)
    if (group.name == name) return group.communicator.get();
  return nullptr;
}

void Trainer::connect_groups() {
  using machine::LinkStream;
  const auto connect = [this](const machine::Group& group, LinkStream stream) {
    groups_.push_back(
        {group.name,
         std::make_unique<collectives::Communicator>(world_, group, config_.transport, stream),
         nullptr});
  };
  for (const machine::Group& group :
       {grid_.group(Axis::tp), grid_.group(Axis::pp), grid_.replica_group()})
    connect(group, LinkStream::own);
  if (config_.fp8.on() && config_.fp8.recipe == layers::Fp8Recipe::delayed)
    connect(ranks_of_stage("fp8"), LinkStream::of_device);  // between the layers' own kernels
  connect_grid();
  connect_plus_plus();
  if (config_.model.has_experts()) {
    const layers::ExpertGroups experts = expert_groups();
    const machine::Group parts = consecutive("tp_cp", config_.degrees.tp * config_.degrees.cp);
    connect(experts.experts, LinkStream::of_device);  // between the layer's own kernels
    if (parts.size() > 1) connect(parts, LinkStream::of_device);
    if (config_.experts_apart()) connect(experts.edp, LinkStream::own);
  }
  if (config_.degrees.cp > 1) {
    // The ring sends between its own kernels, in the device's stream.
    const machine::Group context = grid_.group(Axis::cp);
    connect(context, LinkStream::of_device);
    if (config_.context.is_hybrid()) {
      const layers::HybridGroups groups = layers::hybrid_groups(context, config_.context.a2a_size);
      connect(groups.a2a, LinkStream::of_device);
      connect(groups.p2p, LinkStream::of_device);
    }
  }
  if (pipeline::needs_two_links(schedules_))
    groups_[1].gradients =
        machine::connect(world_, grid_.group(Axis::pp), config_.transport, LinkStream::own);
  const machine::Group ends = tied_group();
  groups_.push_back({"embedding",
                     ends.index >= 0 && ends.size() > 1
                         ? std::make_unique<collectives::Communicator>(
                               world_, ends, config_.transport, LinkStream::own)
                         : nullptr,
                     nullptr});
  for (const Group& group : groups_)
    if (group.communicator)
      group.communicator->set_algorithms(group_algorithms(config_, group.name));
}

// The ranks of tp as a grid. Its groups communicate between the layers' own kernels.
void Trainer::connect_grid() {
  if (!config_.over_grid()) return;
  const layers::TensorGrid grid = config_.grid();
  const machine::Group tp = grid_.group(Axis::tp);
  layers::GridGroups::OfAxes of_axes{};
  for (const layers::GridAxis axis : layers::all_grid_axes) {
    if (grid.size(axis) == 1) continue;
    const machine::Group group = layers::grid_group(tp, grid, axis);
    groups_.push_back({group.name,
                       std::make_unique<collectives::Communicator>(world_, group, config_.transport,
                                                                   machine::LinkStream::of_device),
                       nullptr});
    of_axes[static_cast<std::size_t>(axis)] = groups_.back().communicator.get();
  }
  grid_groups_.emplace(grid, tp.index, of_axes);
  grid_context_.emplace(layers::GridContext{device_, *grid_groups_, config_.precision.dtype,
                                            config_.tensor_grid.product});
}

// The groups of ZeRO++. A secondary group counts as a host; without one the hosts do.
void Trainer::connect_plus_plus() {
  zero::PlusPlusOptions& options = config_.zero.options.plus_plus;
  const machine::Group dp = grid_.replica_group();
  const auto connect = [this](const machine::Group& group) {
    groups_.push_back({group.name,
                       std::make_unique<collectives::Communicator>(world_, group, config_.transport,
                                                                   machine::LinkStream::own),
                       nullptr});
  };
  if (options.has_secondary()) connect(zero::secondary_group(dp, options.hpz_partition_size));
  if (!options.quantized_gradients) return;
  if (!options.has_secondary()) options.near_ranks = zero::ranks_of_a_host(world_, dp);
  const int near = zero::first_hop(options, dp.size());
  if (near == dp.size()) return;
  connect(zero::near_group(dp, near));
  connect(zero::far_group(dp, near));
}

layers::ExpertGroups Trainer::expert_groups() const {
  return layers::expert_groups(ranks_of_stage("stage"), expert_degrees(config_));
}

machine::Group Trainer::consecutive(std::string_view name, int ranks) const {
  const int first = group_.index / ranks * ranks;
  machine::Group group{std::string(name), {}, group_.index - first};
  for (int rank = 0; rank < ranks; ++rank)
    group.members.push_back(group_.members[static_cast<std::size_t>(first + rank)]);
  return group;
}

// Stages vary slowest, so the ranks of one are neighbours.
machine::Group Trainer::ranks_of_stage(std::string_view name) const {
  return consecutive(name, config_.degrees.ranks() / config_.degrees.pp);
}

machine::Group Trainer::tied_group() const {
  return schedules_.placement.copies() > 1 ? grid_.opposite_group() : grid_.embedding_group();
}

}  // namespace suite
