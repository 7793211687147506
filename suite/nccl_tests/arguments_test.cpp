#include "suite/nccl_tests/arguments.h"

#include <gtest/gtest.h>

#include "harness/unit/sweep.h"
#include "suite/collectives/expected.h"

namespace suite::nccl_tests {
namespace {

using machine::Dtype;
using machine::Operation;
using machine::Reduction;

Arguments parse(const std::string& line) {
  std::vector<std::string> words;
  std::size_t from = 0;
  while (from < line.size()) {
    const std::size_t to = std::min(line.find(' ', from), line.size());
    words.push_back(line.substr(from, to - from));
    from = to + 1;
  }
  return *parse_arguments(words);
}

std::string mistake(const std::string& line) {
  try {
    parse(line);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Arguments, DefaultsMatchNcclTests) {
  const Arguments a = parse("all_reduce");
  EXPECT_EQ(a.operation, Operation::all_reduce);
  EXPECT_EQ(a.min_bytes, 33554432);
  EXPECT_EQ(a.max_bytes, 33554432);
  EXPECT_EQ(a.step_bytes, 1048576);
  EXPECT_EQ(a.step_factor, 1);
  EXPECT_EQ(a.iterations, 20);
  EXPECT_EQ(a.warm_up, 1);
  EXPECT_EQ(a.aggregated, 1);
  EXPECT_EQ(a.cycles, 1);
  EXPECT_EQ(a.checks, 1);
  EXPECT_EQ(a.over_ranks, OverRanks::average);
  EXPECT_EQ(a.dtypes, std::vector{Dtype::float32});
  EXPECT_EQ(a.reductions, std::vector{Reduction::sum});
  EXPECT_EQ(a.root, 0);
  EXPECT_EQ(a.wanted_ranks(), 1);
  EXPECT_TRUE(a.notes.empty());
}

TEST(Arguments, AcceptsEveryFormOfFlagsAndTheLastOfTwo) {
  const Arguments a = parse(
      "-b8 --maxbytes=128M reduce -f 2 -n 20 -n 100 -w 5 --check 0 -o max -d half -r 1 -t 2 -g 2 "
      "-a 3 -z 1 -m 4 -N 0 -T 7 -C 0 -S 1");
  EXPECT_EQ(a.operation, Operation::reduce);
  EXPECT_EQ(a.min_bytes, 8);
  EXPECT_EQ(a.max_bytes, 134217728);
  EXPECT_EQ(a.step_factor, 2);
  EXPECT_EQ(a.iterations, 100);
  EXPECT_EQ(a.warm_up, 5);
  EXPECT_EQ(a.checks, 0);
  EXPECT_EQ(a.reductions, std::vector{Reduction::max});
  EXPECT_EQ(a.dtypes, std::vector{Dtype::float16});
  EXPECT_EQ(a.root, 1);
  EXPECT_EQ(a.wanted_ranks(), 4);
  EXPECT_EQ(a.over_ranks, OverRanks::maximum);
  EXPECT_EQ(a.blocking, Blocking::barrier_timed);
  EXPECT_EQ(a.aggregated, 4);
  EXPECT_EQ(a.cycles, 0);
  EXPECT_EQ(a.timeout_s, 7);
  EXPECT_TRUE(a.timestamps);
  EXPECT_TRUE(a.notes.empty());
}

TEST(Arguments, OperationsAcceptBothNames) {
  for (const char* word : {"all_to_all", "alltoall", "alltoall_perf"})
    EXPECT_EQ(parse(word).operation, Operation::all_to_all) << word;
  for (const char* word : {"all_to_all_v", "alltoallv", "alltoallv_perf"})
    EXPECT_EQ(parse(word).operation, Operation::all_to_all_v) << word;
  for (const char* word : {"send_receive", "sendrecv", "sendrecv_perf"})
    EXPECT_EQ(parse(word).operation, Operation::send_receive) << word;
  EXPECT_EQ(program_of(Operation::all_to_all), "alltoall_perf");
  EXPECT_EQ(program_of(Operation::reduce_scatter), "reduce_scatter_perf");
  EXPECT_EQ(mistake("al_reduce"), "unknown operation 'al_reduce'; did you mean 'all_reduce'?");
  EXPECT_NE(mistake("").find("requires OPERATION"), std::string::npos);
}

TEST(Arguments, AllSelectsEveryValue) {
  const Arguments a = parse("reduce -d all -o all -r all");
  EXPECT_EQ(a.dtypes.size(), std::size(machine::every_dtype));
  EXPECT_EQ(a.reductions.size(), std::size(machine::all_reductions));
  EXPECT_FALSE(a.root);
  EXPECT_FALSE(parse("reduce -r -1").root);
}

TEST(Arguments, MistakesSuggestTheNearest) {
  const auto says = [](const std::string& line, const std::string& text) {
    EXPECT_NE(mistake("all_reduce " + line).find(text), std::string::npos)
        << line << ": " << mistake("all_reduce " + line);
  };
  says("--minbyts 8", "unknown flag '--minbyts'; did you mean '--minbytes'?");
  says("-q 3", "unknown flag '-q'; known: -h -b -e");
  says("-d flot", "unknown datatype 'flot'; did you mean 'float'?");
  says("-d f8e4m", "unknown datatype 'f8e4m'; did you mean 'f8e4m3'?");
  says("-o summ", "unknown op 'summ'; did you mean 'sum'?");
  says("-o mulsum", "'mulsum' of nccl-tests is not supported");
  says("-b 8x", "is '8x'; expected a size");
  says("-b 64M", "67108864 is above -e,--maxbytes 33554432");
  says("-b 0", "at least 1 byte");
  says("-b 8 -i 0", "at least 1 byte");
  says("-n 0", "is '0'; expected a whole number from 1 to");
  says("-n 2x", "is '2x'; expected a whole number");
  says("-n", "-n requires a value");
  says("-a 4", "is '4'; expected a whole number from 0 to 3");
  says("-K 2", "needs -I 1");
  says("-J out.txt", "must end in .json");
  says("--algorithm rign", "did you mean 'ring'?");
  says("--algorithm library --transport shared_memory", "requires --transport mpi");
  says("--transport smp", "'smp'");
  says("--ranks 3 -g 2", "--ranks 3 conflicts with -t 1 times -g 2");
  says("more", "unexpected argument 'more'");
  says("-R 3", "is '3'; expected a whole number from 0 to 2");
  says("-R 1 --device cuda --transport cuda_ipc", "requires --transport nccl (got cuda_ipc)");
  EXPECT_EQ(parse("all_reduce -R 2 --device cuda").registered, machine::Registered::window);
  EXPECT_EQ(parse("all_reduce -R 2 --device cuda").transport, machine::Transport::nccl);
  EXPECT_EQ(parse("all_reduce -R 2").registered, machine::Registered::no);
  says("-G 4", "-G,--cudagraph 4 requires --device cuda (got host)");
  says("-G 4 --device cuda --transport cuda_ipc", "requires --transport nccl (got cuda_ipc)");
  says("-G 4 --device cuda -I 1", "conflicts with -I,--per_iter_timing 1");
  says("-G 4 --device cuda -z 3", "conflicts with -z,--blocking 3");
  EXPECT_EQ(parse("all_reduce -G 4 --device cuda").graph_launches, 4);
  EXPECT_EQ(parse("all_reduce -G 4 --device cuda").transport, machine::Transport::nccl);
  EXPECT_EQ(parse("all_reduce -G 0 --device cuda").transport, std::nullopt);
  for (const char* flag : {"-D 1", "-M 1", "-u 1"}) {
    EXPECT_NE(mistake(std::string("all_reduce ") + flag), "none") << flag;
    EXPECT_EQ(mistake(std::string("all_reduce ") + flag[0] + flag[1] + " 0"), "none") << flag;
  }
}

TEST(Arguments, FlagsWithoutEffectAreNoted) {
  for (const char* flags :
       {"all_reduce -p 1", "all_reduce -y 1", "all_reduce -R 2", "all_reduce -x 1",
        "all_reduce -V 8", "all_reduce -C 1", "all_reduce -r 1", "all_gather -o max"})
    EXPECT_EQ(parse(flags).notes.size(), 1U) << flags;
  EXPECT_TRUE(parse("all_reduce -p 0 -y 0 -R 0 -V 16 -r 0 -o max").notes.empty());
}

TEST(Arguments, SizesUseBinaryUnitsAndTheGivenStep) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes(parse("all_reduce -b 8 -e 64 -f 2")), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(sizes(parse("all_reduce -b 8 -e 100 -f 3")), (Sizes{8, 24, 72}));
  EXPECT_EQ(sizes(parse("all_reduce -b 1K -e 3k -i 1.5K")), (Sizes{1024, 2560}));
  EXPECT_EQ(sizes(parse("all_reduce -b 4MiB -e 4M")), (Sizes{4194304}));
  EXPECT_EQ(sizes(parse("all_reduce")), (Sizes{33554432}));
}

// Shares as in src/all_gather.cu and similar programs: whole multiples of 16 bytes.
TEST(Arguments, SharesAreRoundedAsInNcclTests) {
  const auto is = [](Operation operation, std::int64_t size, Dtype dtype, int ranks,
                     std::int64_t count, std::int64_t bytes) {
    const Extent got = extent(operation, size, dtype, ranks);
    EXPECT_EQ(got.count, count);
    EXPECT_EQ(got.bytes, bytes);
  };
  is(Operation::all_reduce, 8, Dtype::float32, 2, 2, 8);
  is(Operation::all_reduce, 11, Dtype::float32, 2, 2, 8);
  is(Operation::broadcast, 1000, Dtype::int8, 3, 1000, 1000);
  is(Operation::send_receive, 64, Dtype::float64, 3, 8, 64);
  for (const Operation operation : {Operation::all_gather, Operation::reduce_scatter,
                                    Operation::gather, Operation::scatter, Operation::all_to_all}) {
    is(operation, 8, Dtype::float32, 2, 0, 0);
    is(operation, 1024, Dtype::float32, 2, 128, 1024);
    is(operation, 1024, Dtype::float32, 3, 84, 1008);
    is(operation, 100, Dtype::int8, 3, 32, 96);
    is(operation, 1000, Dtype::float64, 4, 30, 960);
  }
}

// Counts and bytes have 64 bits. A part of an output may begin beyond 2^32 elements.
TEST(Arguments, SizesReach16GiB) {
  constexpr std::int64_t largest = std::int64_t{16} << 30;
  const auto all = sizes(parse("all_reduce -b 8 -e 16G -f 2"));
  EXPECT_EQ(all.size(), 32U);
  EXPECT_EQ(all.back(), largest);
  const Extent whole = extent(Operation::all_reduce, largest, Dtype::uint8, 8);
  EXPECT_EQ(whole.count, largest);
  EXPECT_EQ(whole.bytes, largest);
  const Extent shares = extent(Operation::all_gather, largest, Dtype::float32, 2);
  EXPECT_EQ(shares.count, largest / 8);
  EXPECT_EQ(shares.bytes, largest);
  const suite::Question question{
      .operation = Operation::all_to_all, .dtype = Dtype::uint8, .ranks = 4, .count = largest / 4};
  const auto parts = suite::parts_of(question, 3);
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[3].begin, 3 * (largest / 4));
  EXPECT_EQ(parts[1].first, 3 * (largest / 4));
  // The pattern does not repeat after 2^32 elements.
  const machine::Pattern inputs = suite::pattern_of(question);
  int different = 0;
  for (std::int64_t i = 0; i < 100; ++i)
    different += machine::pattern_value(inputs, 0, i) !=
                 machine::pattern_value(inputs, 0, i + (std::int64_t{1} << 32));
  EXPECT_GT(different, 50);
  EXPECT_EQ(traffic(parse("alltoallv -b 16G -e 16G"), largest, Dtype::float32, 2)->busiest(),
            largest / 4);
}

// As in src/alltoallv.cu with its spread of 1. Each of 3 ranks sends one third of 1008 bytes to the
// next rank and two thirds to the rank after it.
TEST(Arguments, TrafficMatchesNcclTests) {
  const auto parts = traffic(parse("alltoallv"), 1024, Dtype::float32, 3);
  EXPECT_EQ((*parts)(0, 0), 0);
  EXPECT_EQ((*parts)(0, 1), 84);
  EXPECT_EQ((*parts)(0, 2), 168);
  EXPECT_EQ((*parts)(1, 2), 84);
  const Extent got = extent(Operation::all_to_all_v, 1024, Dtype::float32, 3, parts.get());
  EXPECT_EQ(got.count, 84);
  EXPECT_EQ(got.bytes, 1008);
  EXPECT_EQ(traffic(parse("alltoallv"), 8, Dtype::float32, 2)->total(), 0);
  EXPECT_EQ(traffic(parse("alltoall"), 8, Dtype::float32, 2), nullptr);
  EXPECT_EQ(mistake("alltoall --traffic sparse"),
            "--traffic requires all_to_all_v (got all_to_all)");
  EXPECT_EQ(mistake("alltoall --traffic skewed"),
            "--traffic requires all_to_all_v (got all_to_all)");
  EXPECT_NE(mistake("alltoallv --traffic m.txt -b 8").find("specifies the bytes"),
            std::string::npos);
}

}  // namespace
}  // namespace suite::nccl_tests
