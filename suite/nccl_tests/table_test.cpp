// The text of src/util.cu of nccl-tests 2.19.6, which scripts parse.
#include "suite/nccl_tests/table.h"

#include <gtest/gtest.h>

namespace suite::nccl_tests {
namespace {

using machine::Dtype;
using machine::Operation;

Row row() {
  Row row;
  row.extent = {256, 1024};  // count, bytes
  row.dtype = Dtype::float32;
  row.reduction = "sum";
  row.out_of_place = {12.345, 0.0829, 0.0829, 0, {}, {}};
  row.in_place = {1234567.8, 123.456, 1234567, 3, {}, {}};
  return row;
}

bool ends_with(const std::string& text, const std::string& end) { return text.ends_with(end); }

TEST(Table, HeaderHasTheColumnsOfNcclTests) {
  Arguments a = *parse_arguments({"all_reduce", "-b", "8", "-e", "64", "-f", "2", "-w", "5"});
  a.notes = {"a note"};
  const std::string text = header(a, "0.1", {{0, 77, "node", "a CPU"}, {1, 123456, "n", "b"}});
  EXPECT_EQ(
      text,
      "# shardmark version 0.1, with the table of nccl-tests 2.19.6\n"
      "# Collective test starting: all_reduce_perf\n"
      "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 agg "
      "iters: 1 validation: 1 graph: 0 unalign: 0\n"
      "# a note\n"
      "#\n"
      "# Using devices\n"
      "#  Rank  0 Group  0 Pid     77 on       node device  0 [host] a CPU\n"
      "#  Rank  1 Group  0 Pid 123456 on          n device  0 [host] b\n"
      "#\n"
      "#                                                              out-of-place               "
      "        in-place          \n"
      "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
      "time   algbw   busbw  #wrong \n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             "
      "(us)  (GB/s)  (GB/s)         \n");
}

TEST(Table, RowsFitTheirColumns) {
  const Arguments a = *parse_arguments({"all_reduce"});
  Row r = row();
  EXPECT_EQ(line(a, r, ""),
            "        1024           256     float     sum      -1    12.35    0.08    0.08       0"
            "  1234568  123.46   1e+06       3\n");
  r.in_place->wrong.reset();
  EXPECT_TRUE(ends_with(line(a, r, ""), "  1234568  123.46   1e+06     N/A\n"));
  r.in_place.reset();
  EXPECT_TRUE(ends_with(line(a, r, ""), "0.08       0      N/A     N/A     N/A     N/A\n"));
  // The number of words is constant, for scripts that count them.
  EXPECT_EQ(line(a, r, "").size(), line(a, row(), "").size());
}

TEST(Table, WrongRowsReportTheLocation) {
  Row r = row();
  r.in_place->wrong_where = "rank 1: 3 of 256 elements wrong";
  EXPECT_TRUE(ends_with(line(*parse_arguments({"all_reduce"}), r, ""),
                        "       3\n# in-place: rank 1: 3 of 256 elements wrong\n"));
}

// As a comment: the columns are those of nccl-tests.
TEST(Table, TimesOfGpusAreComments) {
  Row r = row();
  const Arguments a = *parse_arguments({"all_reduce"});
  const std::string columns = line(a, r, "");
  r.out_of_place->device_microseconds = 11.5;
  EXPECT_EQ(line(a, r, ""),
            columns + "# device time (us): out-of-place   11.50, in-place     N/A\n");
  r.in_place->device_microseconds = 1234567;
  EXPECT_EQ(line(a, r, ""),
            columns + "# device time (us): out-of-place   11.50, in-place 1234567\n");
}

TEST(Table, GraphsAreInTheHeader) {
  const Arguments a = *parse_arguments({"all_reduce", "--device", "cuda", "-G", "3"});
  EXPECT_NE(header(a, "", {}).find(" validation: 1 graph: 3 unalign: 0\n"), std::string::npos);
}

TEST(Table, TimestampsAndIterationsAddColumns) {
  const Arguments a = *parse_arguments({"all_reduce", "-S", "1", "-I", "1", "-K", "1"});
  Row r = row();
  r.out_of_place->iterations = {{90, 1, 2, 3}, {}};
  const std::string text = line(a, r, "2026-01-31 23:59:59");
  EXPECT_NE(text.find("       0     1.00     3.00     3.00    40.82  1234568"), std::string::npos)
      << text;
  EXPECT_TRUE(ends_with(text, "  2026-01-31 23:59:59\n"));
  EXPECT_NE(header(a, "", {}).find("#wrong    i_min    i_max    i_p99    i_cv%     time"),
            std::string::npos);
  EXPECT_NE(header(a, "", {}).find("i_cv%           timestamp\n"), std::string::npos);
}

TEST(Table, SummaryUsesNearestRankPercentiles) {
  IterationTimes times;
  for (int i = 100; i > 0; --i) times.maxima_us.push_back(i);
  const IterationSummary s = summary(times, 0);
  EXPECT_EQ(s.minimum, 1);
  EXPECT_EQ(s.maximum, 100);
  EXPECT_EQ(s.average, 50.5);
  EXPECT_EQ(s.p50, 51);
  EXPECT_EQ(s.p95, 95);
  EXPECT_EQ(s.p99, 99);
  EXPECT_NEAR(s.deviation, 28.866, 1e-3);
  EXPECT_EQ(summary(times, 50).maximum, 50);
}

TEST(Table, FooterMatchesNcclTests) {
  const Arguments a = *parse_arguments({"alltoall"});
  Totals totals;
  count(totals, row());
  totals.busbw_sum = 2.5;
  EXPECT_EQ(totals.placements, 2);
  EXPECT_EQ(footer(a, totals),
            "# Out of bounds values : 0 OK\n"
            "# Avg bus bandwidth    : 1.25 \n"
            "#\n"
            "# Collective test concluded: alltoall_perf\n"
            "#\n"
            "\n");
  EXPECT_TRUE(totals.right());
  totals.least_busbw = 1.3;  // 10 % below is accepted
  EXPECT_TRUE(totals.right());
  EXPECT_NE(footer(a, totals).find(": 1.25 OK\n"), std::string::npos);
  totals.least_busbw = 1.4;
  EXPECT_FALSE(totals.right());
  EXPECT_NE(footer(a, totals).find(": 1.25 FAILED\n"), std::string::npos);
  totals.least_busbw.reset();
  totals.out_of_bounds = 2;
  EXPECT_FALSE(totals.right());
  EXPECT_NE(footer(a, totals).find("# Out of bounds values : 2 FAILED\n"), std::string::npos);
}

TEST(Table, ReductionColumnDependsOnTheOperation) {
  EXPECT_EQ(reduction_column(Operation::reduce_scatter, machine::Reduction::max), "max");
  EXPECT_EQ(reduction_column(Operation::all_gather, machine::Reduction::sum), "none");
  EXPECT_EQ(reduction_column(Operation::send_receive, machine::Reduction::sum), "sum");
}

}  // namespace
}  // namespace suite::nccl_tests
