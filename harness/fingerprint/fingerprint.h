#pragma once
// The facts that make two runs comparable: the machine and the software of each rank. Keeps only
// environment variables that control that software, without secrets.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/fingerprint/nccl_log.h"
#include "machine/device/gpu_health.h"
#include "machine/world/world.h"

namespace harness {

// Options of a run that are not in a case's name: "seed" -> "1234".
using OptionTexts = std::map<std::string, std::string>;

// Versions by library ("mpi", "onednn", "nccl", "cuda") in place of the loaded ones, to test the
// comparison of fingerprints.
using InjectedVersions = std::map<std::string, std::string>;

// Returns the calling rank's fingerprint as one JSON object: rank, host, hardware, software,
// environment, options. nccl: what NCCL chose, which is known at the end of a run.
std::string fingerprint_json(machine::World& world, const OptionTexts& options = {},
                             const InjectedVersions& versions = {}, const NcclChoice& nccl = {});

// Returns environment.json from all ranks' fingerprints: `same_on_all_ranks`, `differences` (the
// keys whose values differ: "environment.NCCL_ALGO") and `ranks`, each with only those values.
std::string environment_json(const std::vector<std::string>& fingerprints);

// Returns environment.json of the world on rank 0, and an empty text on other ranks. Collective.
std::string gather_environment(machine::World& world, const OptionTexts& options = {},
                               const InjectedVersions& versions = {}, const NcclChoice& nccl = {});

// Adds the driver's facts on the ranks' GPUs before and after a run to environment.json:
// `gpu_health`, a list for each launch of the run. Returns the new text on rank 0, and an empty one
// if there is nothing to add. `before`: of this rank's GPU. Collective.
std::string with_gpu_health(machine::World& world, const machine::GpuReading& before,
                            const std::string& environment);

// Returns "MPICH 4.0.2" of "MPICH Version:\t4.0.2", and any other text unchanged.
std::string mpi_name(const std::string& version);

// Returns the variables to keep from an environment ("NAME=value"), with secrets replaced by
// "[redacted]".
std::map<std::string, std::string> kept_environment(const char* const* environment);
// Redacts the whole value if the name contains TOKEN, KEY, PASSW or a similar word, else the parts
// of the value that look like a password.
std::string redacted(std::string_view name, std::string_view value);

}  // namespace harness
