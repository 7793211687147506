#pragma once
// The devices of the ranks of a command.

#include "harness/run/run.h"
#include "machine/world/world.h"

namespace suite {

// Makes this rank compute on such a device, and binds it to the cores next to it
// (machine/world/places.h). Collective. Throws machine::MachineError with CUDA's reason if there is
// no GPU.
void choose_device(machine::World& world, machine::Device::Kind kind);

// Returns the number of this host's GPUs that CUDA_VISIBLE_DEVICES does not hide. Does not call
// CUDA.
int gpus_of_host();

// Notes the GPUs of all hosts, and those of the ranks. Collective.
void note_gpus(machine::World& world, harness::RunOptions& options);

}  // namespace suite
