#pragma once
// Every unit includes this header: harness/unit/unit.h and short names for a unit's declarations.

#include <string>

#include "harness/unit/unit.h"
#include "machine/device/tensor.h"
#include "machine/link/link.h"

namespace suite {

using harness::Better, harness::Nature, harness::Oracle, harness::Profile, harness::vary;
using harness::Context, harness::Cost, harness::Counter, harness::Description, harness::Judge,
    harness::Sweep;
using machine::Category, machine::Dtype, machine::Operation, machine::Tensor, machine::Transport;

// Returns the reason why a unit that sends host memory cannot use the transport, or empty.
inline std::string why_no_host_memory(Transport transport) {
  return machine::between_devices(transport)
             ? "the unit sends host memory; use shared_memory or mpi"
             : "";
}

}  // namespace suite
