// Claim: all-gather is exact on integers by every algorithm, sends what its paper says, and ends
// with the same bits on every rank and in every run.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct AllGather : CollectiveOf<machine::Operation::all_gather> {
  static constexpr std::string_view name = "all_gather";
  static constexpr std::string_view about = "every rank's share, on all ranks";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<AllGather>();

}  // namespace
}  // namespace suite
