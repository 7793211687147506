#pragma once
// One case of fp8_linear, and its claims in closed form.

#include <cstddef>
#include <string>
#include <vector>

#include "collectives/communicator/calls.h"
#include "layers/fp8/options.h"
#include "layers/fp8/scaled_products.h"
#include "suite/layers/layer_case.h"
#include "suite/reference/float8/fp8_linear_reference.h"

namespace suite {

struct Fp8Case {
  int ranks = 1;
  Transport transport{};
  Dtype dtype{};
  std::string parallel_mode = "column";  // the split of the weight over tp, or "row"
  // Megatron's arguments.
  std::string fp8_format = "hybrid", fp8_recipe = "delayed", fp8_amax_compute_algo = "most_recent";
  int fp8_margin = 0, fp8_amax_history_len = 1;
  bool sequence_parallel = false;
  int tokens = 1, input_size = 1, output_size = 1;

  bool column() const { return parallel_mode == "column"; }
  layers::Fp8Options options() const;
  Fp8LinearQuestion question() const;
};

Sweep<Fp8Case> fp8_sweep();

// Returns the collectives of a pass. Those that sequence parallelism adds are in 8 bits inward, and
// in the dtype outward.
std::vector<collectives::CollectiveCalls> fp8_calls(const Fp8Case& c, Pass pass);

// Peak bytes of a layer, without the tensors of its caller and the scratch of collectives.
struct Fp8Memory {
  std::size_t kept = 0;     // from forward to backward: the scale of x and its inverse
  std::size_t buffers = 0;  // codes, scales, state, and the copies in float or for the library
};
// On a GPU of this compute capability; 0: the host.
Fp8Memory fp8_memory(const Fp8Case& c, int compute_capability);

// Returns the linear layer of a rank.
layers::Fp8LinearShape fp8_shape(const Fp8Case& c);

}  // namespace suite
