#pragma once
// The oracles of a unit report here. Each rank has its own Judge for a case and the harness merges
// them, so nothing here communicates. A declared oracle that never rules fails the case.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "harness/judge/numerics.h"
#include "harness/record/record.h"
#include "machine/device/memory.h"
#include "machine/link/link.h"

namespace harness {

class Judge {
 public:
  explicit Judge(int rank = -1) : rank_(rank) {}

  // ---- numerics. The caller derives bounds from dtype and operation count (gamma of numerics.h).
  // The absolute tolerance is 0, so a zero bound requires equality. NaN and infinity never pass, on
  // either side. Element by element: |actual - expected| <= bounds[i].
  void numerics(std::string_view what, std::span<const double> actual,
                std::span<const double> expected, std::span<const double> bounds);
  // Judges by norms: ||actual - expected||_2 <= relative_bound * ||expected||_2.
  void numerics_norm(std::string_view what, std::span<const double> actual,
                     std::span<const double> expected, double relative_bound);
  // Judges one number: error <= bound.
  void numerics(std::string_view what, double error, double bound);
  // Judges a time: off <= tolerance. Only the text has both numbers, because times differ between
  // runs and the record's errors and bounds are compared exactly.
  void times(std::string_view what, double off, double tolerance);
  // Judges bitwise, for operations that only move data or sum integers.
  void exact(std::string_view what, std::span<const double> actual,
             std::span<const double> expected);

  // ---- volume: exact, for one label of one group.
  void volume(std::string_view group, machine::TrafficLabel label, const machine::Traffic& measured,
              const machine::Traffic& expected);
  // Judges only the bytes sent, if the number of messages has no formula.
  void volume(std::string_view group, machine::TrafficLabel label, std::uint64_t measured_bytes,
              std::uint64_t expected_bytes);
  // Judges every label of a link, sent and received. An unexpected label also fails.
  void volume(const machine::Link& link,
              const std::map<machine::TrafficLabel, machine::Traffic>& expected);

  // ---- memory: exact, peak bytes of a category.
  void memory(machine::Category category, std::uint64_t measured, std::uint64_t expected);
  // Judges bytes at another moment. The record's rows and counters contain only peaks.
  void memory(std::string_view when, machine::Category category, std::uint64_t measured,
              std::uint64_t expected);

  // ---- schedule: the executed order compared with the plan, as texts.
  void schedule(std::string_view what, std::string_view executed, std::string_view planned);
  void schedule(std::string_view what, std::int64_t measured, std::int64_t expected);

  // ---- determinism: all calls with the same key, on all ranks, must have equal hashes. With
  // several ranks the case fails if no key occurs twice, because nothing was compared.
  void same_bits(std::string_view key, std::uint64_t hash);

  // Marks the oracle's result: its expectation iterates the judged code's own layout, plan or
  // messages, because the literature has no closed form.
  void shares_reference(Oracle oracle) { shared_ |= 1u << static_cast<unsigned>(oracle); }
  // Declares that the oracle does not apply to this case. The record shows the reason. Example: the
  // volume of a library that does not count its messages.
  void not_applicable(Oracle oracle, std::string_view reason);

  const std::vector<OracleResult>& results() const { return results_; }
  struct Fingerprint {
    std::string key;
    std::uint64_t hash = 0;
    static auto members(auto& self) { return std::tie(self.key, self.hash); }
  };
  const std::vector<Fingerprint>& fingerprints() const { return fingerprints_; }
  const std::vector<CategoryBytes>& memory_rows() const { return memory_; }
  // The sums over all calls of volume: sent by this rank.
  struct Wire {
    machine::Traffic measured, expected;
  };
  const Wire& wire() const { return wire_; }
  int rank() const { return rank_; }
  Reference reference(Oracle oracle) const {
    return (shared_ >> static_cast<unsigned>(oracle) & 1u) != 0 ? Reference::shared
                                                                : Reference::independent;
  }
  // To send it to the rank that merges (machine/base/bytes.h).
  static auto members(auto& self) {
    return std::tie(self.rank_, self.shared_, self.results_, self.fingerprints_, self.memory_,
                    self.wire_);
  }

 private:
  void add(Oracle oracle, bool right, double measured, double expected, std::string text);
  void add(std::string_view what, const Comparison& comparison);

  int rank_;
  unsigned shared_ = 0;                // a bit for each oracle
  std::vector<OracleResult> results_;  // at most one of each oracle: its worst
  std::vector<Fingerprint> fingerprints_;
  std::vector<CategoryBytes> memory_;
  Wire wire_;
};

// Merges the findings of all ranks into the record's verdict, reason, failure (its rank is of the
// first oracle that failed), oracles, counters, and memory (of rank 0): the worst result of each
// oracle. Fails if a declared oracle did not rule, or if fingerprints of one key differ (with the
// ranks of each hash).
//
// Counters: wire_bytes_*, messages_*: sent by all ranks together; wire_bytes_of_rank: measured, of
// the rank that sent most, if any sent; peak_bytes_*: sum over the categories that rank 0 judged;
// max_error, error_bound: of the worst comparison of numerics.
void merge(const std::vector<Judge>& judges, std::span<const Oracle> declared, Record& record);

}  // namespace harness
