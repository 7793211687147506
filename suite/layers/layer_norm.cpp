// Claim: LayerNorm on every rank of tp sends nothing, keeps a mean and a deviation a row, and gives
// one rank's bits; with sequence parallelism each rank norms its own rows, and the gradients of
// gain and bias are sums over the ranks (Ba, Kiros, Hinton 2016, arXiv:1607.06450; Korthikanti et
// al. 2022, arXiv:2205.05198, section 4.2.2).
#include "suite/layers/norm_unit.h"

namespace suite {
namespace {

struct LayerNorm final : JudgedNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr std::string_view about =
      "LayerNorm, replicated or of own rows: all three passes";
  static LayerClaims claims(const LayerCase& c) { return norm_claims(c, 2, 2); }

  LayerNorm(const layers::Context& context, const LayerCase& c)
      : JudgedNorm(context, c, name, layers::Normalization::layer_norm) {}
};

const bool registered = harness::add<LayerUnit<LayerNorm>>();

}  // namespace
}  // namespace suite
