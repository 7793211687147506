#pragma once
// The groups of zero_step: all ranks as dp, and those of ZeRO++.

#include <memory>
#include <string>
#include <string_view>

#include "collectives/communicator/communicator.h"
#include "machine/world/world.h"
#include "suite/reference/unit.h"
#include "suite/zero/zero_step_case.h"
#include "zero/stages/step.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace suite {

class ZeroStepGroups {
 public:
  using Communicator = collectives::Communicator;

  ZeroStepGroups(const ZeroStepCase& c, Context& context)
      : hosts_ranks_(zero::ranks_of_a_host(context.world, context.group)),
        dp_(context.world, context.group, c.transport, machine::LinkStream::own) {
    const auto connect = [&](const machine::Group& group) {
      return std::make_unique<Communicator>(context.world, group, c.transport,
                                            machine::LinkStream::own);
    };
    zero::PlusPlusOptions options = c.step_options(1, 0).plus_plus;
    place(options);
    if (options.has_secondary())
      hpz_ = connect(zero::secondary_group(context.group, options.hpz_partition_size));
    near_ranks_ = zero::first_hop(options, c.ranks);
    if (!options.quantized_gradients || near_ranks_ == c.ranks) return;
    near_ = connect(zero::near_group(context.group, near_ranks_));
    far_ = connect(zero::far_group(context.group, near_ranks_));
  }

  // Selects the hops of gradients: a secondary group is a host, or else the hosts are.
  void place(zero::PlusPlusOptions& options) const {
    if (options.quantized_gradients && !options.has_secondary()) options.near_ranks = hosts_ranks_;
  }
  int near_ranks() const { return near_ranks_; }  // of the first hop of gradients

  Communicator& dp() { return dp_; }
  zero::Communicators communicators() {
    return {.dp = &dp_, .hpz = hpz_.get(), .qgz_near = near_.get(), .qgz_far = far_.get()};
  }
  Communicator& named(std::string_view name) {
    for (Communicator* group : {hpz_.get(), near_.get(), far_.get()})
      if (group && group->group().name == name) return *group;
    return dp_;
  }
  // Calls visit(name, communicator) for every group, with the name of its calls' cost.
  void each(const auto& visit) {
    visit("dp", dp_);
    for (Communicator* group : {hpz_.get(), near_.get(), far_.get()})
      if (group) visit(group->group().name, *group);
  }
  void reset_traffic() {
    each([](const std::string&, Communicator& group) { group.link().reset_traffic(); });
  }

 private:
  int hosts_ranks_, near_ranks_ = 1;
  Communicator dp_;
  std::unique_ptr<Communicator> hpz_, near_, far_;  // null if the case has no such group
};

}  // namespace suite
