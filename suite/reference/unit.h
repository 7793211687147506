#pragma once
// Every unit includes this header: harness/unit/unit.h and short names for a unit's declarations.

#include "harness/unit/unit.h"
#include "machine/device/tensor.h"
#include "machine/link/link.h"

namespace suite {

using harness::Better, harness::Nature, harness::Oracle, harness::Profile, harness::vary;
using harness::Context, harness::Cost, harness::Counter, harness::Description, harness::Judge,
    harness::Sweep;
using machine::Category, machine::Dtype, machine::Operation, machine::Tensor, machine::Transport;

}  // namespace suite
