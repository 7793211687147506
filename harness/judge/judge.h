#pragma once
// Where a unit's oracles report. Each rank has its own Judge for a case; the harness merges them,
// so nothing here communicates. An oracle that the unit declares and never rules fails the case.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/numerics.h"
#include "harness/record/record.h"
#include "machine/device/memory.h"
#include "machine/link/link.h"

namespace harness {

class Judge {
 public:
  explicit Judge(int rank) : rank_(rank) {}

  // ---- numerics. Bounds are derived from dtype and operation count by the caller (gamma of
  // numerics.h); absolute tolerance is 0, so an expected zero with a zero bound must be met
  // exactly. NaN and infinity never pass, on either side. Element by element: |actual - expected|
  // <= bounds[i].
  void numerics(std::string_view what, std::span<const double> actual,
                std::span<const double> expected, std::span<const double> bounds);
  // By norms: ||actual - expected||_2 <= relative_bound * ||expected||_2.
  void numerics_norm(std::string_view what, std::span<const double> actual,
                     std::span<const double> expected, double relative_bound);
  // One number: error <= bound.
  void numerics(std::string_view what, double error, double bound);
  // Of times, which no two runs have in common: off <= tolerance. The text says both; the record's
  // errors and bounds, which are compared exactly between runs, have neither.
  void times(std::string_view what, double off, double tolerance);
  // Bitwise, for what only moves data or sums integers.
  void exact(std::string_view what, std::span<const double> actual,
             std::span<const double> expected);

  // ---- volume: exactly, for one label of one group.
  void volume(std::string_view group, machine::TrafficLabel label, const machine::Traffic& measured,
              const machine::Traffic& expected);
  // The same for bytes sent alone, where the number of messages has no formula.
  void volume(std::string_view group, machine::TrafficLabel label, std::uint64_t measured_bytes,
              std::uint64_t expected_bytes);
  // Every label of a link at once: a label that was not expected fails too. messages_sent and
  // bytes_sent are compared; received bytes likewise.
  void volume(const machine::Link& link,
              const std::map<machine::TrafficLabel, machine::Traffic>& expected);

  // ---- memory: exactly, peak bytes of a category.
  void memory(machine::Category category, std::uint64_t measured, std::uint64_t expected);
  // Held at some other moment; the record's rows and counters are of peaks alone.
  void memory(std::string_view when, machine::Category category, std::uint64_t measured,
              std::uint64_t expected);

  // ---- schedule: what happened against what was planned, as texts.
  void schedule(std::string_view what, std::string_view executed, std::string_view planned);
  void schedule(std::string_view what, std::int64_t measured, std::int64_t expected);

  // ---- determinism: all ranks (and all calls) that name the same key must bring equal hashes. On
  // more than one rank some key must be brought twice, else nothing was compared and the case
  // fails.
  void same_bits(std::string_view key, std::uint64_t hash);

  // Marks the oracle's result: its expectation iterates the judged code's own layout, plan or
  // messages, as the literature has no closed form for it.
  void shares_reference(Oracle oracle) { shared_ |= 1u << static_cast<unsigned>(oracle); }
  // This oracle has nothing to rule in this case, for this reason (shown in the record): the volume
  // of a library that does not count what it sends.
  void not_applicable(Oracle oracle, std::string_view reason);

  const std::vector<OracleResult>& results() const { return results_; }
  struct Fingerprint {
    std::string key;
    std::uint64_t hash;
  };
  const std::vector<Fingerprint>& fingerprints() const { return fingerprints_; }
  const std::vector<CategoryBytes>& memory_rows() const { return memory_; }
  // What all calls of volume saw together: sent by this rank.
  struct Wire {
    machine::Traffic measured, expected;
  };
  const Wire& wire() const { return wire_; }
  int rank() const { return rank_; }
  Reference reference(Oracle oracle) const {
    return (shared_ >> static_cast<unsigned>(oracle) & 1u) != 0 ? Reference::shared
                                                                : Reference::independent;
  }

 private:
  friend std::string serialize(const Judge& judge);
  friend Judge deserialize(std::string_view text);
  void add(Oracle oracle, bool right, double measured, double expected, std::string text);
  void add(std::string_view what, const Comparison& comparison);

  int rank_;
  unsigned shared_ = 0;                // a bit for each oracle
  std::vector<OracleResult> results_;  // at most one of each oracle: its worst
  std::vector<Fingerprint> fingerprints_;
  std::vector<CategoryBytes> memory_;
  Wire wire_;
};

// The findings of all ranks as one verdict: the worst result of each oracle. Fails when a declared
// oracle did not rule, or when fingerprints of one key differ (naming the ranks on each side).
struct JudgedCase {
  Ruling verdict = Ruling::pass;
  std::string reason;
  int failed_rank = -1;  // of the first oracle that failed
  std::vector<OracleResult> oracles;
  // wire_bytes_*, messages_*: sent by all ranks together; wire_bytes_of_rank: measured, of the rank
  // that sent most, if any sent; peak_bytes_*: sum over the categories
  // that rank 0 judged; max_error, error_bound: of the worst comparison of numerics.
  std::map<std::string, double> counters;
  std::vector<CategoryBytes> memory;  // of rank 0
};
JudgedCase merge(const std::vector<Judge>& judges, std::span<const Oracle> declared);

// For sending a Judge to the rank that merges. Bytes, for the same program only; deserialize throws
// std::logic_error on anything else.
std::string serialize(const Judge& judge);
Judge deserialize(std::string_view text);

}  // namespace harness
