#pragma once
// Proves a plan right without running it: all ranks' steps are executed symbolically, a chunk's
// value being where it belongs and in which order which ranks' contributions were added. Shows for
// the rank count given that
//   - every rank ends with the right chunks, each contribution counted once;
//   - where several ranks hold a result, all of them added in the same order, so their bits agree;
//   - from its post until it is received, only the peer uses a posted place, and the peer writes to
//     it only after it has read its old value;
//   - no step reads unwritten data, no plan deadlocks, no channel holds more than max_outstanding
//     messages, and every message sent is received;
// both out of place and in place. Messages are read as the links read them: in place, at the latest
// moment.

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

// `call` without its rank, for all of them. count: elements of the whole, or of a share where the
// operation deals in shares. Throws ProofError naming rank, step and what is wrong.
Proof prove(const Algorithm& algorithm, const Call& call, std::int64_t count, bool in_place);

}  // namespace collectives
