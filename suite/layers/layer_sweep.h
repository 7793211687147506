#pragma once
// The cases of a layer's unit: quick a cross-section of four, acceptance the full matrix.

#include "suite/layers/layer_case.h"

namespace suite {

// claims says of a case what tp must divide there.
harness::Sweep<LayerCase> layer_sweep(const LayerTraits& traits,
                                      LayerClaims (*claims)(const LayerCase&));

}  // namespace suite
