// Claim: send-receive is exact on integers by every algorithm, and sends what its paper says.
#include "suite/collectives/collective_unit.h"

namespace suite {
namespace {

struct SendReceive : CollectiveOf<machine::Operation::send_receive> {
  static constexpr std::string_view name = "send_receive";
  static constexpr std::string_view about = "to the next rank, from the one before";
  using CollectiveOf::CollectiveOf;
};

const bool registered = harness::add<SendReceive>();

}  // namespace
}  // namespace suite
