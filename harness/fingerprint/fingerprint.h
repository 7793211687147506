#pragma once
// What makes two runs comparable: the machine each rank ran on and the software it ran with. Only
// environment variables that steer that software are kept, and no secret among them.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine/world/world.h"

namespace harness {

// How a run measures, where that is not in a case's name: "seed" -> "1234".
using OptionTexts = std::map<std::string, std::string>;

// Versions by library ("mpi", "onednn", "nccl", "cuda") in place of the loaded ones, for tests of
// what compares fingerprints.
using InjectedVersions = std::map<std::string, std::string>;

// Of the rank that calls, as one JSON object: rank, host, hardware, software, environment, options.
std::string fingerprint_json(machine::World& world, const OptionTexts& options = {},
                             const InjectedVersions& versions = {});

// environment.json from all ranks' fingerprints: `same_on_all_ranks`, `differences` (the keys whose
// values differ, as "environment.NCCL_ALGO") and `ranks`, each with what differs only.
std::string environment_json(const std::vector<std::string>& fingerprints);

// environment.json of the world, on rank 0; elsewhere empty. Collective.
std::string gather_environment(machine::World& world, const OptionTexts& options = {},
                               const InjectedVersions& versions = {});

// The variables worth keeping of an environment ("NAME=value"), secrets replaced by "[redacted]".
std::map<std::string, std::string> kept_environment(const char* const* environment);
// By name (…TOKEN…, …KEY…, …PASSW…) the whole value; else what in it looks like a password.
std::string redacted(std::string_view name, std::string_view value);

}  // namespace harness
