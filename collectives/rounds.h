#pragma once
// The order of a plan over rendezvous links (Link::is_rendezvous). NCCL's send waits for its
// receive: a rank that issues its steps one by one, or in groups of its own choosing, can wait
// forever for a rank that does the same (a ring that sends two pieces before it receives the first;
// an exchange of all with all). Here every rank knows the plans of all and cuts them alike into
// rounds: a transfer is in the round of the same number at both its ends.
//
// A round holds every transfer that is ready at both ends when the rounds before are over: what it
// reads is there, what it overwrites is no longer needed, and those before it on its channel have
// moved or move along. Every plan that the prover accepts comes to its end so: of the steps that
// were never ready, take the one that the prover's run does first; all that it waits for was done
// before it, so it was ready.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/plan.h"

namespace collectives {

// Indices of the plan's steps. Posts are in none.
struct Round {
  std::vector<std::size_t> transfers;  // send, receive and receive_reduce, all at once; then
  std::vector<std::size_t> then;       // copy, reduce and the sums of receive_reduce, in order
};

// Of every rank; call.pieces as the plan cuts. count: elements of the whole, or of a share where
// the operation deals in shares. Throws std::logic_error naming what is left when a plan does not
// end.
std::vector<std::vector<Round>> rounds_of_ranks(const Algorithm& algorithm, const Call& call,
                                                std::int64_t count, bool in_place);
// Of call.rank.
std::vector<Round> rounds_of(const Algorithm& algorithm, const Call& call, std::int64_t count,
                             bool in_place);

// What a received part takes of the memory where the parts of a round wait to be added, aligned for
// the widest access.
constexpr std::size_t staged_bytes(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
// All of it that a rank needs.
std::size_t staging_bytes(const Algorithm& algorithm, const Call& call, std::int64_t count,
                          machine::Dtype dtype, bool in_place);

}  // namespace collectives
