// Claim: scatter is exact on integers by every algorithm, from and to any root, and sends what its
// paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct Scatter : CollectiveOf<machine::Operation::scatter> {
  static constexpr std::string_view name = "scatter";
  static constexpr std::string_view about = "one rank's shares, one to each";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<Scatter>();

}  // namespace
}  // namespace suite
