// Claim: all-reduce is exact on integers by every algorithm, sends what its paper says, and ends
// with the same bits on every rank and in every run.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct AllReduce : CollectiveOf<machine::Operation::all_reduce> {
  static constexpr std::string_view name = "all_reduce";
  static constexpr std::string_view about = "the sum over all ranks, on all ranks";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<AllReduce>();

}  // namespace
}  // namespace suite
