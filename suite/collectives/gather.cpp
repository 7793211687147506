// Claim: gather is exact on integers by every algorithm, from and to any root, and sends what its
// paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct Gather : CollectiveOf<machine::Operation::gather> {
  static constexpr std::string_view name = "gather";
  static constexpr std::string_view about = "every rank's share, on one rank";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<Gather>();

}  // namespace
}  // namespace suite
