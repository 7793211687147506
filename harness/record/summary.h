#pragma once
// What a run comes to: counts, the verdict, a headline for each unit. Console, junit.xml and
// report.html all say the same because they take it from here.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/record/record.h"

namespace harness {

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
  int cases() const { return passed + failed + skipped; }
};

struct UnitSummary {
  std::string unit;
  Counts counts;
  std::string best;           // highest rate of a passed case, "4.59 GB/s"; empty: none
  std::string wire;           // what a rank of that case sent per second, likewise
  double limit_fraction = 0;  // median over passed cases that have one; 0: none has
  double speedup = 0;         // over the library, likewise
};

struct SkipGroup {
  std::string reason;
  int cases = 0;
  std::vector<std::pair<std::string, int>> units;  // unit, its cases
};

struct Summary {
  Counts counts;
  bool accepted = false;  // something passed, nothing failed, and the run came to its end
  std::string verdict;    // "ACCEPTED" or "REJECTED"
  std::string details;    // "214 passed, 0 failed, 31 skipped; 80 cases not run: time"
  std::string line() const { return verdict + ": " + details; }
  std::vector<UnitSummary> units;  // in order of their first case
  std::vector<SkipGroup> skips;    // most cases first
};
Summary summarize(const RunContext& context, const std::vector<Record>& records);

// A case's key rate: steps/s, tokens/s, bus bandwidth, GFLOP/s of a rank, whichever says most;
// empty when it has none.
std::string rate_text(const Record& record);
// What the rank that sent most put on the wire per second, "3.06 GB/s", or empty: busbw is such a
// rate only for the algorithm that nccl-tests' factor assumes.
std::string wire_text(const Record& record);
std::string seconds_text(double seconds);   // "105 us", "1.24 s": three digits
std::string duration_text(double seconds);  // "35 s", "2 min 5 s", "1 h 20 min"
// "2 (node-a) to 5 (node-b) bandwidth 3.1 of 12 GB/s".
std::string pair_text(const LinkMatrix& matrix, const LinkMatrix::SlowPair& pair);
// On one line, without control characters.
std::string plain(std::string_view text);
// The reason and, of each oracle that failed, what it found where; a line each.
std::vector<std::string> failure_lines(const Record& record);

}  // namespace harness
