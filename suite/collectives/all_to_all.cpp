// Claim: all-to-all is exact on integers by every algorithm, and sends what its paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct AllToAll : CollectiveOf<machine::Operation::all_to_all> {
  static constexpr std::string_view name = "all_to_all";
  static constexpr std::string_view about = "a share of every rank to every rank";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<AllToAll>();

}  // namespace
}  // namespace suite
