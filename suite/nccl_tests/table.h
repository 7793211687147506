#pragma once
// The text that nccl-tests 2.19.6 prints (NVIDIA/nccl-tests, src/util.cu): comment lines with `#`,
// one row per size, out of place and in place, and the two footers that scripts search for. The
// functions return whole lines and do not print.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "suite/nccl_tests/arguments.h"

namespace suite::nccl_tests {

// A line "#  Rank …".
struct RankLine {
  int rank = 0;
  long pid = 0;
  std::string host, device;
};

// -I: the maximum over ranks of every iteration, in microseconds. The summary omits the first -K
// iterations.
struct IterationTimes {
  std::vector<double> maxima_us;
  std::vector<std::vector<double>> by_rank_us;  // [rank][iteration]
};
struct IterationSummary {
  double minimum = 0, maximum = 0, average = 0, p50 = 0, p95 = 0, p99 = 0, deviation = 0;
  double variation_percent = 0;
};
// Returns the summary of nccl-tests: p95 and p99 by nearest rank, p50 the upper median, the
// deviation over n.
IterationSummary summary(const IterationTimes& times, int skipped);

// One placement of one row: time of one operation, S/t, and the rate of a link.
struct Timing {
  double microseconds = 0, algbw_GBps = 0, busbw_GBps = 0;
  std::optional<std::int64_t> wrong;  // elements, over all ranks; empty: not checked
  std::string wrong_where;            // the error of the first rank with wrong elements
  std::optional<IterationTimes> iterations;
  std::optional<double> device_microseconds{};  // of a GPU, between events in its stream
};

struct Row {
  Extent extent;
  machine::Dtype dtype{};
  std::string reduction;  // column redop
  int root = -1;
  std::string algorithm;                         // for the JSON
  std::string note;                              // the choice of auto
  std::optional<Timing> out_of_place, in_place;  // empty: the operation cannot be in place
};
// Returns sum, prod, … if the operation reduces. For sendrecv, which does not reduce, it also
// returns the value of -o, as nccl-tests does.
std::string reduction_column(machine::Operation operation, machine::Reduction reduction);

struct Totals {
  std::int64_t out_of_bounds = 0;  // checks with a wrong value, counted per rank
  double busbw_sum = 0;            // over rows and placements
  int placements = 0;
  std::optional<double> least_busbw;  // NCCL_TESTS_MIN_BW

  double average_busbw() const { return placements > 0 ? busbw_sum / placements : 0; }
  // Returns whether the average reaches 90 % of the minimum, as in nccl-tests.
  bool enough_busbw() const { return !least_busbw || average_busbw() >= 0.9 * *least_busbw; }
  bool right() const { return out_of_bounds == 0 && enough_busbw(); }
};
void count(Totals& totals, const Row& row);

std::string header(const Arguments& arguments, std::string_view version,
                   const std::vector<RankLine>& ranks);
// Adds a comment line for each placement with wrong values, and one for the times of GPUs. now:
// "2026-01-31 23:59:59", for -S.
std::string line(const Arguments& arguments, const Row& row, std::string_view now);
std::string footer(const Arguments& arguments, const Totals& totals);

}  // namespace suite::nccl_tests
