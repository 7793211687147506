#pragma once
// The rate of a dispatch of tokens, compared with the messages it consists of.

#include <functional>

#include "collectives/communicator/communicator.h"
#include "machine/world/world.h"

namespace suite {

// Returns the time of `messages` over that of `dispatch`: the median of 15 rounds, in which both
// alternate, each by the slowest rank. Collective over the communicator's group.
double dispatch_over_messages(machine::World& world, collectives::Communicator& group,
                              const std::function<void()>& dispatch,
                              const std::function<void()>& messages);

}  // namespace suite
