#pragma once
// The algorithms of a step's groups: tp, dp, embedding and pp.
//
//   communicator.set_algorithms(group_algorithms(config, "tp"));
//
// By default the library's own collectives run over nccl in tp and dp. NCCL supports every dtype
// and reduction of a step. Our own algorithms run over all other transports, in the other groups,
// and if the bits of a sum must not depend on its place: two stages that hold a parameter sum its
// gradients over the same ranks, but at different places of their buffers. A sum of two terms has
// the same bits in any order. With tp-comm-overlap and sequence parallelism tp gathers and scatters
// by rings, whose shares products use and make one after the other.

#include <string_view>

#include "collectives/communicator/group_algorithms.h"
#include "suite/configuration/training_config.h"

namespace suite {

// Throws std::invalid_argument for an unknown operation or name, and for the library over a
// transport without one. Needs only `algorithms` and `transport` of the config.
void check_algorithm_names(const TrainingConfig& config);

// Requires an otherwise valid config. Throws std::invalid_argument like check_algorithm_names, and
// if an algorithm does not support the size of the group or the order that the config requires.
collectives::GroupAlgorithms group_algorithms(const TrainingConfig& config, std::string_view group);
void validate_algorithms(const TrainingConfig& config);

}  // namespace suite
