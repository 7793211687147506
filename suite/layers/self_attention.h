#pragma once
// The claims for attention with its heads sharded over tp, which the units of dense and of sparse
// attention share.

#include "suite/layers/layer_case.h"

namespace suite {

LayerClaims self_attention_claims(const LayerCase& c);

}  // namespace suite
