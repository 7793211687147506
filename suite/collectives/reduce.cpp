// Claim: reduce is exact on integers by every algorithm, from and to any root, and sends what its
// paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct Reduce : CollectiveOf<machine::Operation::reduce> {
  static constexpr std::string_view name = "reduce";
  static constexpr std::string_view about = "the sum of all buffers, on one rank";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<Reduce>();

}  // namespace
}  // namespace suite
