// Claim: the perceptron sharded over tp gives the whole perceptron's result. It sends one
// all-reduce forward and one backward (with sequence parallelism an all-gather and a reduce-scatter
// each, and an all-gather for the weights), also if it communicates during the products
// (tp-comm-overlap). It keeps input and output of GELU, [tokens, 4 hidden] / tp each, or of SwiGLU,
// whose input is twice as wide (Shazeer 2020, arXiv:2002.05202; Shoeybi et al. 2019,
// arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4).
#include "layers/mlp.h"

#include <algorithm>

#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

LayerClaims claims(const LayerCase& c) {
  const LayerSizes z(c);
  const bool gated = c.architecture == "llama";  // three matrices, no biases
  const std::int64_t h = c.hidden_size, t = c.ranks, f = (gated ? 3 : 4) * h;
  const std::int64_t weights = (gated ? 3 : 2) * f * h / t;
  const std::size_t inner = z.columns(gated ? 2 * f : f), active = z.columns(f);
  return {
      .cut = {{gated ? "3 x hidden-size" : "4 x hidden-size", f}},
      .parameters = weights + (gated ? 0 : f / t + h),
      .calls = calls_of_two_products(c),
      .saved = inner + active,
      .saved_for_weights = active,
      // Backward keeps d_inner and d_y of all rows until it ends. It frees d_active before it
      // allocates x or d_x of all rows. With tp-comm-overlap it holds both at once.
      .buffers = std::max(z.gathered, inner + z.gathered + std::max(active, z.rows_of_first(c))),
      .flops = 3.0 * 2 * static_cast<double>(c.tokens() * weights),
      .longest_sum = std::max(gated ? 2 * f : f, c.tokens()),
  };
}

constexpr LayerTraits traits{
    .name = "mlp",
    .about = "column-parallel, GELU or SwiGLU, row-parallel: all three passes",
    .claims = claims,
    .make = make_layer<SavingLayer<layers::Mlp>>,
    .has_architecture = true,
    .has_products = true,
    .limit_applies = true};
const bool registered = harness::add<LayerUnit<traits>>();

}  // namespace
}  // namespace suite
