#pragma once
// The devices of the ranks of a command.

#include "harness/run/run.h"
#include "machine/world/world.h"

namespace suite {

// Makes this rank compute on such a device, and binds it to the cores beside it
// (machine/world/places.h). Collective. Throws machine::MachineError with CUDA's reason if there is
// no GPU.
void choose_device(machine::World& world, machine::Device::Kind kind);

// Notes the GPUs of all hosts, and those of the ranks. Collective.
void note_gpus(machine::World& world, harness::RunOptions& options);

}  // namespace suite
