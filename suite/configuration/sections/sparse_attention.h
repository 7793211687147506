#pragma once
// The block `sparse_attention` of ds_config.json. Attention of a training step is dense, so a step
// refuses the block. The unit sparse_attention measures and judges its layout:
//
//   "sparse_attention": {"mode": "fixed", "block": 32, "attention": "unidirectional"}
//   -> "--pattern fixed --block 32 --attention unidirectional"

#include <string>
#include <vector>

#include "suite/files/json_leaves.h"

namespace suite::configuration {

// Returns the flags of the unit for the block of a file, with DeepSpeed's defaults for the keys
// that it lacks (deepspeed/runtime/config.py). Throws UsageError naming file and key: a key that
// its mode does not have, a value of another kind, or a value that the unit does not have.
std::string sparse_attention_flags(const std::string& file, const std::vector<Leaf>& leaves);

}  // namespace suite::configuration
