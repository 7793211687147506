#pragma once
// Proves that a plan is correct without running it. The steps of all ranks are executed
// symbolically. The value of a chunk is its number in the whole and the order in which ranks'
// contributions were added. For a given rank count the proof shows that
//   - every rank ends with the right chunks, each contribution counted once;
//   - if several ranks hold a result, they added in the same order, so their bits agree;
//   - from its post until it is received, only the peer uses a posted place, and the peer writes to
//     it only after it has read its old value;
//   - no step reads unwritten data, no plan deadlocks, even if messages of a joined sum wait for
//     each other (joined_sum.h), no channel holds more than max_outstanding messages, and every
//     message sent is received.
// It holds for the given placement (in place or not). Messages are read as the links read them: in
// place, at the latest moment.

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "collectives/plan.h"

namespace collectives {

class ProofError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Proof {
  std::vector<Volume> volumes;  // by rank
  bool one_order = true;        // every chunk of every rank is summed in the same order
};

// Proves the plans of all ranks; call.rank is ignored. count: elements of the whole buffer, or of a
// share (deals_in_shares). Throws ProofError that names the rank, the step and the error.
Proof prove(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place);

}  // namespace collectives
