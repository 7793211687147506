#pragma once
// The measured time of each layer of a model, for dividing layers over a pipeline's parts by time
// (model_chunks.h).

#include "machine/device/device.h"
#include "machine/world/world.h"
#include "suite/configuration/training_config.h"

namespace suite {

// Sets layer_costs if the partition method is "profile" and there are several parts. A cost is the
// time in nanoseconds of a micro-batch's forward and backward through one layer as its own stage.
// The first layer includes the embedding, the last the head. The slowest rank's time is used, so
// that all ranks divide equally. The layers in between are equal and are measured once. Collective
// over the group, whose size is the product of the degrees. Frees its memory. Throws the errors of
// GptStage's constructor.
void measure_layers(TrainingConfig& config, machine::World& world, const machine::Group& group,
                    machine::Device& device);

}  // namespace suite
