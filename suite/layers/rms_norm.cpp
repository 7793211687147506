// Claim: RMSNorm on every rank of tp sends nothing, keeps one number a row, and gives one rank's
// bits; with sequence parallelism each rank norms its own rows, and the gradient of gain is a sum
// over the ranks (Zhang and Sennrich 2019, arXiv:1910.07467; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.2.2).
#include "suite/layers/norm_unit.h"

namespace suite {
namespace {

struct RmsNorm final : JudgedNorm {
  static constexpr std::string_view name = "rms_norm";
  static constexpr std::string_view about = "RMSNorm, replicated or of own rows: all three passes";
  static LayerClaims claims(const LayerCase& c) { return norm_claims(c, 1, 1); }

  RmsNorm(const layers::Context& context, const LayerCase& c)
      : JudgedNorm(context, c, name, layers::Normalization::rms_norm) {}
};

const bool registered = harness::add<LayerUnit<RmsNorm>>();

}  // namespace
}  // namespace suite
