#pragma once
// What each layer of a model takes, measured: for dividing layers over a pipeline's parts by time
// (model_chunks.h).

#include "machine/device/device.h"
#include "machine/world/world.h"
#include "suite/configuration/training_config.h"

namespace suite {

// Where the partition method is "profile" and there are several parts, sets layer_costs:
// nanoseconds of a micro-batch's forward and backward through each layer as if it were a stage, the
// first with the embedding, the last with the head; of all ranks the slowest, so that all divide
// alike. Layers between the ends are alike and measured once. Collective over the group, whose size
// is the product of the degrees; memory is given back. Throws as GptStage's constructor.
void measure_layers(TrainingConfig& config, machine::World& world, const machine::Group& group,
                    machine::Device& device);

}  // namespace suite
