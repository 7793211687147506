#pragma once
// The devices of the ranks of a command.

#include <string>

#include "harness/run/run.h"
#include "machine/device/gpu_health.h"
#include "machine/world/world.h"

namespace suite {

// Makes this rank compute on such a device. The ranks of a host use its GPUs in turn. Throws
// machine::MachineError with CUDA's reason if there is no GPU.
void choose_device(machine::World& world, machine::Device::Kind kind);

// Adds what the driver says of the ranks' GPUs, `before` the run and now, to environment.json of
// the run. A disk that is full is no reason to fail. Collective.
void note_gpu_health(machine::World& world, const machine::GpuReading& before,
                     const std::string& directory);

// Notes the GPUs of all hosts, and those of the ranks. Collective.
void note_gpus(machine::World& world, harness::RunOptions& options);

}  // namespace suite
