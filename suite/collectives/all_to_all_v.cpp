// Claim: all-to-all with another length for every pair of ranks is exact on integers by every
// algorithm, whatever the traffic, and sends each part once.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct AllToAllV : CollectiveOf<machine::Operation::all_to_all_v> {
  static constexpr std::string_view name = "all_to_all_v";
  static constexpr std::string_view about = "a part of every rank to every rank, of any length";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<AllToAllV>();

}  // namespace
}  // namespace suite
