#pragma once
// A failure as a value: its kind and the ranks that it concerns, from where it is detected to
// run.json, junit.xml and drain.json.
//
//   throw MachineError("cannot write to x: No space left on device", Failure::Kind::disk_full);
//   return Failure{.kind = Failure::Kind::wrong_result, .peer = 1, .text = "3 elements wrong"};
//
// `text` is for people only. No program parses it. Ranks are ranks of the world.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

namespace machine {

struct Failure {
  enum class Kind : unsigned char {
    exception,      // any exception without a more specific kind
    wrong_result,   // an oracle or the check of a sample failed
    wrong_input,    // an invalid file or option of the user
    out_of_memory,  //
    disk_full,      //
    timeout,        // `rank` waited too long for `peer`
    peer_failed,    // `rank` stopped because `peer` had failed
    lost_rank,      // `rank` died, was stopped, hung or did not respond
    deadlock,       // ranks wait for each other
    unsupported,    // the case cannot run here
  };
  Kind kind = Kind::exception;
  int rank = -1;    // that failed or found the failure; -1: unknown
  int peer = -1;    // that sent the wrong data, was waited for or had failed; -1: no peer
  int sample = -1;  // number of the sample; -1: outside of samples
  // Ranks whose values a wrong sum contains; 0: not a sum. Above 2 the faulty rank is unknown.
  int summed_ranks = 0;
  std::string text = {};
  bool operator==(const Failure&) const = default;
  static auto members(auto& self) {  // base/bytes.h
    return std::tie(self.kind, self.rank, self.peer, self.sample, self.summed_ranks, self.text);
  }
};

std::string_view name(Failure::Kind kind);
// Throws std::runtime_error when `text` is not the name of a kind.
Failure::Kind parse_failure_kind(std::string_view text);
// Returns disk_full or out_of_memory for such an errno value, else exception.
Failure::Kind kind_of_errno(int error);

// Returns "rank 2: TEXT", or only the text if the rank is unknown.
std::string line(const Failure& failure);
// Returns the rank that the failure removed from the run. -1: the rank is unknown or only waited.
int lost_rank(const Failure& failure);
// Returns the failure that caused the others, given at most one failure per rank, by rank.
// Exceptions precede wrong results, and wrong results precede waits. Wrong data is traced to the
// rank that sent it, if that rank has wrong data too. Empty if no rank failed.
std::optional<Failure> first_cause(std::span<const std::optional<Failure>> of_ranks);

}  // namespace machine
