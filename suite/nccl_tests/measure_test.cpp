// Rows measured on threads. The tests check counts and results, not durations.
#include "suite/nccl_tests/measure.h"

#include <gtest/gtest.h>

namespace suite::nccl_tests {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Transport;

// Returns rank 0's row. `reduction_of` returns the reduction of a rank.
template <class ReductionOf>
Row measured(const std::vector<std::string>& words, std::int64_t size, Dtype dtype, int ranks,
             const ReductionOf& reduction_of, int root = 0, std::int64_t* failed = nullptr) {
  const Arguments arguments = *parse_arguments(words);
  Row row;
  machine::run_ranks(ranks, [&](machine::World& world) {
    Measure measure(world, arguments, Transport::shared_memory);
    const Row mine = measure.row(size, dtype, reduction_of(world.rank()), root);
    if (world.rank() != 0) return;
    row = mine;
    if (failed) *failed = measure.failed_checks();
  });
  return row;
}

TEST(Measure, EveryOperationIsRightInAndOutOfPlace) {
  for (const char* operation :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "all_to_all_v", "send_receive"}) {
    const Row row = measured(
        {operation, "-n", "3"}, 3000, Dtype::bfloat16, 3, [](int) { return Reduction::sum; }, 1);
    ASSERT_TRUE(row.out_of_place) << operation;
    EXPECT_EQ(row.out_of_place->wrong, 0) << operation << row.out_of_place->wrong_where;
    EXPECT_GT(row.out_of_place->microseconds, 0) << operation;
    const bool moves_apart = std::string(operation).starts_with("all_to_all") ||
                             std::string(operation) == "send_receive";
    ASSERT_EQ(row.in_place.has_value(), !moves_apart) << operation;
    if (row.in_place) {
      EXPECT_EQ(row.in_place->wrong, 0) << operation << row.in_place->wrong_where;
    }
  }
}

TEST(Measure, EveryReductionIsRight) {
  for (const Reduction reduction : machine::all_reductions)
    for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::uint8}) {
      const Row row = measured({"all_reduce", "-n", "2", "-o", std::string(name(reduction))}, 999,
                               dtype, 3, [&](int) { return reduction; });
      EXPECT_EQ(row.out_of_place->wrong, 0) << name(reduction) << " of " << name(dtype);
      EXPECT_EQ(row.in_place->wrong, 0) << name(reduction) << " of " << name(dtype);
      EXPECT_EQ(row.reduction, name(reduction));
    }
}

// One rank computes maxima and the other sums, so both get unexpected values.
TEST(Measure, WrongValuesAreCountedAndLocated) {
  std::int64_t failed = 0;
  const Row row = measured(
      {"all_reduce", "-n", "2", "--algorithm", "direct"}, 4096, Dtype::float32, 2,
      [](int rank) { return rank == 0 ? Reduction::sum : Reduction::max; }, 0, &failed);
  EXPECT_GT(*row.out_of_place->wrong, 100);
  EXPECT_GT(*row.in_place->wrong, 100);
  EXPECT_NE(row.out_of_place->wrong_where.find("of 1024 elements wrong"), std::string::npos);
  EXPECT_EQ(failed, 4);  // two ranks, two placements
}

TEST(Measure, WithoutChecksNoErrorsAreCounted) {
  const Row row = measured({"all_reduce", "-c", "0"}, 64, Dtype::float32, 2,
                           [](int rank) { return rank == 0 ? Reduction::sum : Reduction::max; });
  EXPECT_FALSE(row.out_of_place->wrong);
  EXPECT_FALSE(row.in_place->wrong);
}

TEST(Measure, EmptySharesGiveARow) {
  const Row row =
      measured({"all_gather"}, 8, Dtype::float32, 2, [](int) { return Reduction::sum; });
  EXPECT_EQ(row.extent.count, 0);
  EXPECT_EQ(row.out_of_place->busbw_GBps, 0);
  EXPECT_EQ(row.out_of_place->wrong, 0);
}

TEST(Measure, RatesFollowTheTime) {
  const Row row =
      measured({"reduce_scatter"}, 4096, Dtype::float32, 4, [](int) { return Reduction::sum; });
  const Timing& timing = *row.out_of_place;
  EXPECT_DOUBLE_EQ(timing.algbw_GBps, 4096 / 1e3 / timing.microseconds);
  EXPECT_DOUBLE_EQ(timing.busbw_GBps, timing.algbw_GBps * 3 / 4);
}

TEST(Measure, IterationTimesAreRecordedOnRequest) {
  for (const char* blocking : {"0", "1", "3"}) {
    const Row row = measured({"all_reduce", "-I", "1", "-n", "5", "-m", "2", "-z", blocking}, 64,
                             Dtype::float32, 2, [](int) { return Reduction::sum; });
    const IterationTimes& times = *row.out_of_place->iterations;
    ASSERT_EQ(times.by_rank_us.size(), 2U);
    ASSERT_EQ(times.maxima_us.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_EQ(times.maxima_us[i], std::max(times.by_rank_us[0][i], times.by_rank_us[1][i]));
  }
  EXPECT_FALSE(measured({"all_reduce"}, 64, Dtype::float32, 2, [](int) {
                 return Reduction::sum;
               }).out_of_place->iterations);
}

// With -z 3, the measured interval is the sum of its iterations.
TEST(Measure, TimeIsPerOperation) {
  const Row row = measured({"all_reduce", "-I", "1", "-n", "5", "-m", "2", "-z", "3"}, 64,
                           Dtype::float32, 2, [](int) { return Reduction::sum; });
  double sum = 0;
  for (const auto& of_rank : row.out_of_place->iterations->by_rank_us)
    for (const double time : of_rank) sum += time;
  EXPECT_NEAR(row.out_of_place->microseconds, sum / (2 * 5), 1e-9 * sum);
}

TEST(Measure, TimesOfAllRanksAreCombined) {
  const std::vector<double> times{2, 1, 6};
  EXPECT_EQ(over_ranks(OverRanks::rank_0, times), 2);
  EXPECT_EQ(over_ranks(OverRanks::average, times), 3);
  EXPECT_EQ(over_ranks(OverRanks::minimum, times), 1);
  EXPECT_EQ(over_ranks(OverRanks::maximum, times), 6);
}

}  // namespace
}  // namespace suite::nccl_tests
