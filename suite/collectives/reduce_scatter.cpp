// Claim: reduce-scatter is exact on integers by every algorithm, sends what its paper says, and
// ends with the same bits on every rank and in every run.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct ReduceScatter : CollectiveOf<machine::Operation::reduce_scatter> {
  static constexpr std::string_view name = "reduce_scatter";
  static constexpr std::string_view about = "the sum over all ranks, each rank its share";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<ReduceScatter>();

}  // namespace
}  // namespace suite
