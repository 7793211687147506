#pragma once
// The devices of the ranks of a command.

#include <string>

#include "harness/run/run.h"
#include "machine/device/gpu_health.h"
#include "machine/world/world.h"

namespace suite {

// Makes this rank compute on such a device, and binds it to the cores next to it
// (machine/world/places.h). Collective. Throws machine::MachineError with CUDA's reason if there is
// no GPU.
void choose_device(machine::World& world, machine::Device::Kind kind);

// Adds the driver's facts on the ranks' GPUs, `before` the run and now, to environment.json of the
// run. Does not fail if the disk is full. Collective.
void note_gpu_health(machine::World& world, const machine::GpuReading& before,
                     const std::string& directory);
// Returns the number of this host's GPUs that CUDA_VISIBLE_DEVICES does not hide. Does not call
// CUDA.
int gpus_of_host();

// Notes the GPUs of all hosts, and those of the ranks. Collective.
void note_gpus(machine::World& world, harness::RunOptions& options);

}  // namespace suite
