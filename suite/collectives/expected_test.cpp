// Compares the results that the collectives' oracle expects with results computed by hand, and
// checks the reported positions of wrong elements.
#include "suite/collectives/expected.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "collectives/plan.h"
#include "machine/world/world.h"
#include "suite/collectives/collective_unit.h"
#include "suite/files/traffic.h"

namespace suite {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Reduction;
using machine::Tensor;

TEST(Expected, SumsWrapAroundAndAveragesTruncate) {
  // Sums of uint8 over 100 ranks exceed 255. Averages of int8 have a fraction.
  Question question{Operation::all_reduce, Reduction::sum, Dtype::uint8, 100, 0, 500};
  bool wrapped = false;
  const std::vector<double> sums = expected(question, 0);
  for (std::int64_t i = 0; i < question.count; ++i) {
    int sum = 0;
    for (int rank = 0; rank < 100; ++rank) sum += static_cast<int>(pattern(question, rank, i));
    wrapped = wrapped || sum > 255;
    EXPECT_EQ(sums[static_cast<std::size_t>(i)], sum % 256);
  }
  EXPECT_TRUE(wrapped);
  question = {Operation::all_reduce, Reduction::avg, Dtype::int8, 3, 0, 500};
  const std::vector<double> averages = expected(question, 0);
  for (std::int64_t i = 0; i < question.count; ++i) {
    int sum = 0;
    for (int rank = 0; rank < 3; ++rank) sum += static_cast<int>(pattern(question, rank, i));
    EXPECT_EQ(averages[static_cast<std::size_t>(i)], sum / 3);
  }
}

TEST(Expected, BoundsGrowWithRanksAndRoundoff) {
  const Question sum{Operation::all_reduce, Reduction::sum, Dtype::bfloat16, 3, 0, 1};
  const Bounded three = reduce_exactly(sum, {1, -2, 4});
  EXPECT_EQ(three.value, 3);
  EXPECT_NEAR(three.error, 7 * (257.0 * 257 / 65536 - 1), 1e-12);  // two additions
  Question max = sum;
  max.reduction = Reduction::max;
  EXPECT_EQ(reduce_exactly(max, {1, -2, 4}).value, 4);
  EXPECT_EQ(reduce_exactly(max, {1, -2, 4}).error, 0);
}

// In any order, the sum of the magnitudes bounds every partial sum. Each rank has non-zero
// elements.
TEST(Expected, EightBitSumsAreExact) {
  for (const auto& [dtype, largest] :
       {std::pair{Dtype::float8_e4m3, 16.0}, {Dtype::float8_e5m2, 8.0}})
    for (int ranks = 1; ranks <= 64; ++ranks) {
      const Question question{Operation::all_reduce, Reduction::sum, dtype, ranks, 0, 640};
      std::vector<double> of_rank(static_cast<std::size_t>(ranks));
      for (std::int64_t i = 0; i < question.count; ++i) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const double magnitude = std::abs(pattern(question, rank, i));
          sum += magnitude;
          of_rank[static_cast<std::size_t>(rank)] += magnitude;
        }
        ASSERT_LE(sum, largest) << ranks << " ranks, element " << i;
      }
      for (const double magnitudes : of_rank) EXPECT_GT(magnitudes, 0);
    }
}

TEST(Expected, PartsAreInRankOrder) {
  const collectives::TrafficMatrix traffic(3, {1, 2, 0, 0, 0, 0, 3, 4, 5});
  Question question{Operation::all_to_all_v, Reduction::sum, Dtype::float32, 3, 0, 9};
  question.traffic = &traffic;
  std::vector<double> right;
  for (const std::int64_t i : {1, 2}) right.push_back(pattern(question, 0, i));
  for (const std::int64_t i : {3, 4, 5, 6}) right.push_back(pattern(question, 2, i));
  EXPECT_EQ(expected(question, 1), right);
}

std::vector<std::int64_t> parts(const collectives::TrafficMatrix& traffic) {
  std::vector<std::int64_t> all;
  for (int from = 0; from < traffic.ranks(); ++from)
    for (int to = 0; to < traffic.ranks(); ++to) all.push_back(traffic(from, to));
  return all;
}

TEST(Traffic, IsGeneratedByName) {
  using Parts = std::vector<std::int64_t>;
  const auto of = [](const char* name, int ranks, std::int64_t bytes, std::int64_t granule = 1) {
    return parts(*traffic_matrix(name, ranks, bytes, Dtype::float32, granule));
  };
  EXPECT_EQ(of("uniform", 3, 48), Parts(9, 4));
  EXPECT_EQ(of("skewed", 3, 48), (Parts{0, 4, 8, 8, 0, 4, 4, 8, 0}));
  EXPECT_EQ(of("sparse", 3, 48), (Parts{0, 6, 6, 0, 0, 0, 6, 6, 0}));
  EXPECT_EQ(of("hot_spot", 2, 128), (Parts{16, 2, 16, 2}));
  EXPECT_EQ(of("skewed", 2, 100, 16), (Parts{0, 24, 24, 0}));  // 25 floats, rounded to 16 bytes
  for (const std::string_view name : generated_traffic)
    for (int ranks = 1; ranks <= 9; ++ranks) {
      EXPECT_EQ(of(name.data(), ranks, 0), Parts(static_cast<std::size_t>(ranks * ranks), 0));
      const auto matrix = traffic_matrix(std::string(name), ranks, 40000, Dtype::float32);
      EXPECT_LE(matrix->busiest(), 10000) << name << ranks;
      EXPECT_GE(matrix->busiest(), 10000 - ranks) << name << ranks;
      EXPECT_GT(traffic_matrix(std::string(name), ranks, 1, Dtype::float32)->total(), 0) << name;
    }
}

TEST(Traffic, IsReadFromAFile) {
  const std::string path = testing::TempDir() + "traffic.txt";
  const auto why = [&](const char* text, int ranks, std::int64_t bytes) {
    std::ofstream(path) << text;
    return why_no_traffic(path, ranks, bytes);
  };
  EXPECT_EQ(why("# bytes\n0 100\t7\n\n50 0 75 # to 2\n300 1.5e2 200", 3, 650), "");
  EXPECT_EQ(parts(*traffic_matrix(path, 3, 0, Dtype::float32)),
            (std::vector<std::int64_t>{0, 25, 1, 12, 0, 18, 75, 37, 50}));
  EXPECT_EQ(why_no_traffic(path, 4, 650), path + " is for 3 ranks, not 4");
  EXPECT_EQ(why_no_traffic(path, 3, 64),
            path + " specifies 650 bytes (of the busiest rank), not 64");
  EXPECT_EQ(why("1 2\n3 x\n", 2, 0), path + ", line 2: 'x' is not a number of bytes");
  EXPECT_EQ(why("1 2\n# \n3 -4\n", 2, 0), path + ", line 3: -4 is negative");
  EXPECT_EQ(why("\n1 2\n3 4 5\n", 2, 0), path + ", line 3: 3 numbers, but 2 in line 2");
  EXPECT_EQ(why("1 2\n3 4\n5 6\n", 2, 0), path + " is not square: 3 lines of 2 numbers");
  EXPECT_EQ(why("1 nan\n3 4\n", 2, 0), path + ", line 1: 'nan' is not a number of bytes");
  EXPECT_EQ(why("# nothing\n", 2, 0), path + " holds no numbers");

  std::ofstream(path) << "0 8\n24 0\n";
  harness::AxisFlags axes{{"traffic", path}, {"bytes", "8"}};
  take_sizes_of_file(axes);
  EXPECT_EQ(axes, (harness::AxisFlags{{"traffic", path}, {"bytes", "8"}, {"ranks", "2"}}));
  std::remove(path.c_str());
  EXPECT_EQ(why_no_traffic(path, 2, 0), "cannot read the traffic file '" + path + "'");
  EXPECT_EQ(why_no_traffic("skewd", 2, 0),
            "unknown traffic 'skewd'; did you mean 'skewed'? (or a file)");
}

TEST(WrongElements, AreCountedAndShown) {
  machine::run_ranks(1, [](machine::World& world) {
    machine::Device& device = world.host_device();
    const Question question{Operation::all_gather, Reduction::sum, Dtype::bfloat16, 2, 0, 50};
    const Tensor output(device, Dtype::bfloat16, {100}, machine::Category::buffers);
    const Tensor errors = error_words(device);
    const std::vector<double> right = expected(question, 0);
    from_doubles(output, right);
    EXPECT_EQ(wrong_elements(output, question, 0, errors).count, 0);
    from_doubles(output.slice(17, {1}), {64});
    from_doubles(output.slice(60, {1}), {32});
    const WrongElements found = wrong_elements(output, question, 0, errors);
    EXPECT_EQ(found.count, 2);
    EXPECT_EQ(found.first, 17);
    EXPECT_EQ(found.last, 60);
    EXPECT_EQ(found.largest, std::max(64 - right[17], 32 - right[60]));
    const std::string text =
        "2 of 100 elements wrong, from 17 to 60; the first is 0x4280 (64), not 0x";
    EXPECT_EQ(found.text.rfind(text, 0), 0u) << found.text;
    EXPECT_TRUE(found.text.ends_with(fmt::format(" ({})", right[17]))) << found.text;
  });
}

// An output is the parts of its sources, also if the parts differ in length.
TEST(WrongElements, AreFoundInEveryOperation) {
  machine::run_ranks(1, [](machine::World& world) {
    const collectives::TrafficMatrix traffic(3, {1, 2, 0, 0, 4, 0, 3, 1, 5});
    const Tensor errors = error_words(world.host_device());
    for (const Operation operation :
         {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
          Operation::broadcast, Operation::scatter, Operation::all_to_all, Operation::all_to_all_v,
          Operation::send_receive})
      for (int rank = 0; rank < 3; ++rank) {
        const Question question{operation, Reduction::sum, Dtype::int32, 3, 1, 9, &traffic};
        const std::vector<double> right = expected(question, rank);
        const Tensor output(world.host_device(), Dtype::int32,
                            {static_cast<std::int64_t>(right.size())}, machine::Category::buffers);
        for (std::int64_t i = 0; i < output.size(); ++i) {
          from_doubles(output, right);
          ASSERT_EQ(wrong_elements(output, question, rank, errors).count, 0) << name(operation);
          from_doubles(output.slice(i, {1}), {1000});
          const WrongElements found = wrong_elements(output, question, rank, errors);
          ASSERT_EQ(found.count, 1) << name(operation);
          ASSERT_EQ(found.first, i) << name(operation);
        }
      }
  });
}

TEST(WrongElements, NameTheirSender) {
  // Ring all-gather: all shares except a rank's own come from the previous rank.
  const auto& ring = collectives::find_algorithm(Operation::all_gather, "ring");
  const collectives::Call call{2, 4, 2};
  for (std::int64_t i = 0; i < 40; ++i)
    EXPECT_EQ(last_writer(ring, call, 10, i).rank, i / 10 == 2 ? -1 : 1) << i;
  // Pairwise all-to-all: share i comes from rank i.
  const auto& pairwise = collectives::find_algorithm(Operation::all_to_all, "pairwise");
  for (std::int64_t i = 0; i < 40; ++i)
    EXPECT_EQ(last_writer(pairwise, {2, 4, 1}, 10, i).rank, i / 10 == 2 ? -1 : i / 10) << i;
  // All-to-all-v: the parts differ in length.
  const collectives::TrafficMatrix traffic(3, {1, 2, 0, 0, 4, 0, 3, 1, 5});
  const auto& direct = collectives::find_algorithm(Operation::all_to_all_v, "direct");
  const int writers[] = {0, 0, -1, -1, -1, -1, 2};
  for (std::int64_t i = 0; i < 7; ++i)
    EXPECT_EQ(last_writer(direct, {1, 3, 1, 0, 1, &traffic}, traffic.busiest(), i).rank,
              writers[i]);
}

}  // namespace
}  // namespace suite
