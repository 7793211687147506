// The ring of a build without liburing.

#include "machine/base/error.h"
#include "zero/offload/io_ring.h"

namespace zero {

struct IoRing::Engine {};

std::string IoRing::why_not() { return "this build has no liburing"; }
IoRing::IoRing(const IoOptions& options) : options_(options) {
  check(options);
  throw machine::MachineError(why_not() + "; install liburing-dev and build again");
}
IoRing::~IoRing() = default;
std::string IoRing::register_memory(const std::vector<Tensor>&) { return why_not(); }
IoRing::Ticket IoRing::read(const IoFile&, std::uint64_t, const Tensor&) { return 0; }
IoRing::Ticket IoRing::write(const IoFile&, std::uint64_t, const Tensor&) { return 0; }
void IoRing::wait(Ticket) {}
IoCounts IoRing::counts() const { return {}; }

}  // namespace zero
