#pragma once
// The order of a plan over rendezvous links (Link::is_rendezvous). NCCL's send waits for its
// receive. So a rank that issues its steps one by one, or in its own groups, can deadlock with a
// rank that does the same. Examples are a ring that sends two pieces before it receives the first,
// and an exchange between all ranks. Here all ranks split their plans into matching rounds: a
// transfer has the same round number at both ends.
//
// A round contains every transfer that is ready at both ends after the previous rounds. A transfer
// is ready if its source is written and its target is no longer needed. All earlier transfers of
// its channel must be in this or an earlier round. So its number is the larger of the first rounds
// in which its two ends are ready. Each rank needs only its own plan: it goes through its steps in
// order and sends its own number to the other end of each transfer. This waits only if the plan
// would wait over links with buffers. The prover shows that such a plan does not deadlock.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "collectives/plan.h"

namespace collectives {

// Indices of the plan's steps. Posts are in no round.
struct Round {
  std::vector<std::size_t> transfers;  // send, receive and receive_reduce, all at once
  std::vector<std::size_t> then;       // then copy, reduce and sums of receive_reduce, in order
};

// The exchange of round numbers between the ranks of a group, in order for each pair of ranks.
class Agreement {
 public:
  struct Number {
    bool sends;  // whether it is of the sending end
    int round;
  };
  virtual ~Agreement() = default;
  virtual void send(int peer, Number number) = 0;
  // Waits for the peer's next number, or returns an empty value if it has not arrived.
  virtual std::optional<Number> receive(int peer) = 0;
};

// Returns the rounds of call.rank. call.pieces: those of the plan. count: elements of the whole
// buffer, or of a share (deals_in_shares). The rounds are valid in place and out of place, because
// a rank does not know whether another rank calls in place. Collective over the group; the
// agreement waits.
std::vector<Round> rounds_of(const Algorithm& algorithm, const Call& call, std::int64_t count,
                             Agreement& agreement);

// Returns the bytes of a received part in the staging of a round, aligned for the widest access.
constexpr std::size_t staged_bytes(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
// Returns the bytes of staging that a rank with these rounds needs.
std::size_t staging_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype, const std::vector<Round>& rounds);

}  // namespace collectives
