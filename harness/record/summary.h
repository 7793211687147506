#pragma once
// The result of a run: counts, the verdict, a headline for each unit. Console, junit.xml and
// report.html take it from here, so they agree.

#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"

namespace harness {

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
  int slow = 0;  // of the passed cases: below_expectation
  void add(Ruling ruling);
  int cases() const { return passed + failed + skipped; }
};

// The numbers are those of one case, the best: the passed case with the highest rate, or if no case
// has a rate, the one nearest to its limit.
struct UnitSummary {
  std::string unit;
  Counts counts;
  const Record* best_case = nullptr;  // among the summarized records; null: no such case
  std::string best;                   // its rate, "4.59 GB/s", or empty
  std::string wire;                   // rate of its rank that sent most, or empty
  double limit_fraction = 0;          // 0: no limit
  double expected_fraction = 0;       // 0: no expectation
  std::string speedup;                // over the library, "1.50x", or empty
};

// The axes of a unit's cases, in the order in which the cases have them.
using Axes = std::vector<std::pair<std::string, std::string>>;
struct UnitAxes {
  std::vector<std::string> varying;
  Axes fixed;  // one value in all cases
};
UnitAxes axes_of(const std::vector<const Axes*>& cases);

struct SkipGroup {
  std::string reason;
  int cases = 0;
  std::vector<std::pair<std::string, int>> units;  // unit, its cases
};

struct Summary {
  Counts counts;
  // pass: the machine is accepted, because a case passed, no case failed, not all communication was
  // skipped, and the run completed. skipped: the same on virtual GPUs, which do not show that
  // hardware works.
  Ruling ruling = Ruling::fail;
  std::string verdict;  // "ACCEPTED", "REJECTED", or "PASSED ON VIRTUAL GPUS"
  std::string details;  // "214 passed, 0 failed, 31 skipped; 80 cases not run (time limit)"
  std::string line() const { return verdict + ": " + details; }
  std::vector<UnitSummary> units;  // in order of their first case; refer to the records
  std::vector<SkipGroup> skips;    // most cases first
};
Summary summarize(const RunContext& context, const std::vector<Record>& records);

// Returns whether the case is slower than its floor allows (--expect), even with the lower end of
// its median's interval.
bool below_expectation(const Record& record);
// "61 % of the expected speed (floor 80 %): 1.20 ms expected, 1.97 ms measured".
std::string expectation_text(const Record& record);

// Returns whether the records have cases that communicate, and each of these was skipped.
bool skipped_all_communication(const std::vector<Record>& records);

// Returns the kind of a case. It determines the smallest relevant change of its time and the
// fraction of its limit that it should reach: "step" of a training, "computation" (matrix
// products), "bandwidth" (moves 64 MiB or more), "message" (64 KiB to 64 MiB), "latency" (below 64
// KiB), or "other" (its size is unknown).
std::string_view kind_of_case(const Record& record);
// A case's key rate: the first of steps/s, tokens/s, bus bandwidth and GFLOP/s of a rank. value 0:
// the case has no rate.
struct Rate {
  double value = 0;  // comparable between cases of one unit
  const char* name = "";
};
Rate key_rate(const Record& record);
std::string rate_text(const Rate& rate);
std::string rate_text(const Record& record);  // of its key rate, or empty
// "1.50x", over the library, or empty. A star marks a case whose ranks share cores.
std::string speedup_text(const Record& record, std::string_view sign = "x");
// Rate of the rank that sent most, "3.06 GB/s", or empty. busbw is such a rate only for the
// algorithm that nccl-tests' factor assumes.
std::string wire_text(const Record& record);
// "MFU 41 % of the peak, 52 % of the best GEMM" of a GPU, "MFU 52 % of the measured GEMM" of a
// host, or empty.
std::string mfu_text(const Record& record);
std::string seconds_text(double seconds);   // "105 us", "1.24 s": three digits
std::string duration_text(double seconds);  // "35 s", "2 min 5 s", "1 h 20 min"
// "2 (node-a) to 5 (node-b) bandwidth 3.1 of 12 GB/s".
std::string pair_text(const LinkMatrix& matrix, const LinkMatrix::SlowPair& pair);
// Returns the text on one line, without control characters.
std::string plain(std::string_view text);
// Returns the reason and the findings of the oracles that failed, one line each.
std::vector<std::string> failure_lines(const Record& record);

}  // namespace harness
