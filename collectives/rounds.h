#pragma once
// The order of a plan over rendezvous links (Link::is_rendezvous). NCCL's send waits for its
// receive: a rank that issues its steps one by one, or in groups of its own choosing, can wait
// forever for a rank that does the same (a ring that sends two pieces before it receives the first;
// an exchange of all with all). Here ranks cut their plans alike into rounds: a transfer is in the
// round of the same number at both its ends.
//
// A round holds every transfer that is ready at both ends when the rounds before are over: what it
// reads is there, what it overwrites is no longer needed, and those before it on its channel have
// moved or move along. So a transfer's number is the larger of the first rounds in which its ends
// are ready, and each rank needs only its own plan: it goes through its steps in order and tells
// the other end of each transfer its own number. That waits where the plan itself would wait over
// links that buffer, and the prover shows that the plan does not wait for itself.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/plan.h"

namespace collectives {

// Indices of the plan's steps. Posts are in none.
struct Round {
  std::vector<std::size_t> transfers;  // send, receive and receive_reduce, all at once; then
  std::vector<std::size_t> then;       // copy, reduce and the sums of receive_reduce, in order
};

// How ranks of a group tell each other numbers of rounds, in order for each pair of ranks.
class Agreement {
 public:
  struct Number {
    bool sends;  // the end that it is of
    int round;
  };
  virtual ~Agreement() = default;
  virtual void send(int peer, Number number) = 0;
  // Waits for the peer's next number, or returns nothing if it has not come.
  virtual std::optional<Number> receive(int peer) = 0;
};

// The rounds of call.rank; call.pieces as the plan cuts. count: elements of the whole, or of a
// share where the operation deals in shares. They hold in place and out of place, since a rank does
// not know which of the two a call is on another rank. Collective over the group; the agreement
// waits.
std::vector<Round> rounds_of(const Algorithm& algorithm, const Call& call, std::int64_t count,
                             Agreement& agreement);

// What a received part takes of the memory where the parts of a round wait to be added, aligned for
// the widest access.
constexpr std::size_t staged_bytes(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
// All of it that a rank with these rounds needs.
std::size_t staging_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype, const std::vector<Round>& rounds);

}  // namespace collectives
