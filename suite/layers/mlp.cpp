// Claim: the two-layer perceptron cut over tp computes what the whole one does; sends one
// all-reduce forward and one backward (with sequence parallelism an all-gather and a reduce-scatter
// each, and an all-gather for the weights); keeps its input and output of GELU, [tokens, 4 hidden]
// / tp each (Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4).
#include "layers/mlp.h"

#include <algorithm>

#include "suite/layers/layer_unit.h"

namespace suite {
namespace {

class Mlp final : public SavingLayer<layers::Mlp> {
 public:
  static constexpr std::string_view name = "mlp";
  static constexpr std::string_view about = "column-parallel, GELU, row-parallel: all three passes";
  static constexpr LayerTraits traits{};

  static LayerClaims claims(const LayerCase& c) {
    const LayerSizes z(c);
    const std::int64_t h = c.hidden_size, t = c.ranks;
    const std::size_t inner = 4 * z.M / z.t;
    return {
        .cut = {{"4 x hidden-size", 4 * h}},
        .parameters = 8 * h * h / t + 4 * h / t + h,
        .calls = {calls(c, {.inward = 1, .outward = 1}), calls(c, {.inward = 1, .outward = 1}),
                  calls(c, {.inward = 1})},
        .saved = 2 * inner,
        .saved_for_weights = inner,
        // d_inner and d_y of all rows from the input half to the end; d_active goes before x or its
        // gradient is gathered.
        .buffers = std::max(z.gathered, inner + z.gathered + std::max(inner, z.gathered)),
        .flops = 3.0 * 2 * static_cast<double>(c.tokens() * 8 * h * h / t),
        .longest_sum = std::max(4 * h, c.tokens()),
    };
  }

  Mlp(const layers::Context& context, const LayerCase& c)
      : SavingLayer(context, std::string(name), c.hidden_size, std::int64_t{4} * c.hidden_size) {}
};

const bool registered = harness::add<LayerUnit<Mlp>>();

}  // namespace
}  // namespace suite
