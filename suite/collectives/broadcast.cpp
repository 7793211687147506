// Claim: broadcast is exact on integers by every algorithm, from and to any root, and sends what
// its paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct Broadcast : CollectiveOf<machine::Operation::broadcast> {
  static constexpr std::string_view name = "broadcast";
  static constexpr std::string_view about = "one rank's buffer, on all ranks";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<Broadcast>();

}  // namespace
}  // namespace suite
