#pragma once
// Numbers of ranks that depend on the launch. The units' own numbers are fixed and at most 8, so
// that runs of several machines have the same cases. Under a launcher they can leave ranks idle,
// and with them their GPUs. Units of collectives and of single devices therefore add cases on all
// ranks of the first host and on all ranks (Sweep::launch_slice).

#include <string>
#include <vector>

#include "machine/device/device.h"
#include "machine/world/world.h"

namespace harness {

inline constexpr int largest_fixed_ranks = 8;

// Returns the ranks of the first host and of all hosts, ascending. Empty for one rank. Also empty
// on one host if its ranks are at most largest_fixed_ranks and do not compute on GPUs, so that the
// cases of small machines stay comparable.
std::vector<int> launch_ranks(const std::vector<int>& ranks_of_hosts, machine::Device::Kind device);
std::vector<int> launch_ranks(const machine::World& world, machine::Device::Kind device);

// "8,16", for the ranks that this program starts.
std::string launch_ranks_text(const std::vector<int>& ranks);
// Throws machine::UsageError for another text. Empty for an empty text.
std::vector<int> parse_launch_ranks(const std::string& text);

}  // namespace harness
