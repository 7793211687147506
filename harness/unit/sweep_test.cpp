#include "harness/unit/sweep.h"

#include <gtest/gtest.h>

#include <set>

#include "harness/run/turns.h"

namespace harness {
namespace {

using machine::Dtype;
using machine::Transport;

struct Case {
  int ranks = 1;
  std::string algorithm;
  Dtype dtype = Dtype::float32;
  Transport transport = Transport::shared_memory;
  Bytes bytes;
  bool overlap = false;
};

Sweep<Case> sweep() {
  return Sweep<Case>()
      .axis("algorithm", &Case::algorithm, {"ring", "direct"}, {"ring", "direct", "tree"})
      .axis("dtype", &Case::dtype, {Dtype::float32})
      .axis("transport", &Case::transport, {Transport::shared_memory})
      .axis("overlap", &Case::overlap, {false})
      .axis("ranks", &Case::ranks, {1, 2, 4}, {1, 2, 4, 8})
      .axis("bytes", &Case::bytes, powers(8, 32, 4));
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

std::vector<std::int64_t> sizes(std::string_view text) {
  std::vector<std::int64_t> values;
  for (const Bytes& bytes : AxisText<Bytes>::parse_list("bytes", text))
    values.push_back(bytes.value);
  return values;
}

TEST(Sweep, IsTheProductWithTheFirstAxisSlowest) {
  const auto cases = sweep().cases({});
  ASSERT_EQ(cases.size(), 2u * 3u * 2u);
  EXPECT_EQ(cases[0].first.algorithm, "ring");
  EXPECT_EQ(cases[0].first.ranks, 1);
  EXPECT_EQ(cases[1].first.bytes, Bytes{32});
  EXPECT_EQ(cases.back().first.algorithm, "direct");
}

TEST(Sweep, PowersReachTheirLast) {
  EXPECT_EQ(powers(8, 127, 4), (std::vector<Bytes>{{8}, {32}}));
  EXPECT_EQ(powers(8, 128, 4), (std::vector<Bytes>{{8}, {32}, {128}}));
  EXPECT_EQ(powers(1, std::int64_t{1} << 62, 2).size(), 63u);
}

TEST(Sweep, FlagsReplaceValuesAndTextsNameThem) {
  const auto cases =
      sweep().cases({{"bytes", "1KiB"}, {"ranks", "8"}, {"algorithm", "tree"}, {"overlap", "on"}});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_TRUE(cases[0].first.overlap);
  const AxisValues expected = {
      {"algorithm", "tree"}, {"dtype", "float"}, {"transport", "shared_memory"},
      {"overlap", "on"},     {"ranks", "8"},     {"bytes", "1024"}};
  EXPECT_EQ(cases[0].second, expected);
}

TEST(Sweep, ValuesGivenTwiceCountOnce) {
  EXPECT_EQ(sweep().cases({{"bytes", "1K,1KiB,1024"}}).size(), 6u);
}

TEST(Sweep, UsualStandsForWhatIsNotChosen) {
  const auto usual = [](const AxisFlags& flags) {
    return sweep().usual("algorithm", "direct").cases(flags);
  };
  EXPECT_EQ(usual({}).size(), 12u);
  const auto cases = usual({{"ranks", "2"}});
  ASSERT_EQ(cases.size(), 2u);
  for (const auto& [one, texts] : cases) EXPECT_EQ(one.algorithm, "direct");
  EXPECT_EQ(usual({{"algorithm", "ring,tree"}}).size(), 12u);
  EXPECT_THROW(sweep().usual("algorithm", "tree"), std::logic_error);  // none of the profile's
  EXPECT_THROW(sweep().usual("algorithmus", "ring"), std::logic_error);
}

TEST(Sweep, OnlyLeavesOut) {
  const auto several = [](const Case& c) {
    return c.ranks > 1 ? std::string() : std::string("one rank has nobody to talk to");
  };
  EXPECT_EQ(sweep().only(several).cases({}).size(), 8u);
  EXPECT_EQ(sweep().only(several).cases({{"ranks", "2"}}).size(), 4u);
  try {
    sweep().only(several).cases({{"ranks", "1,2"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "ranks 1: one rank has nobody to talk to");
  }
  try {
    sweep().only(several).cases({{"ranks", "1"}, {"algorithm", "ring"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "one rank has nobody to talk to")
        << "and the ring has no part in it";
  }
}

TEST(Sweep, ASampleYieldsToTheCommandLine) {
  const auto small = [](const Case& c) { return c.ranks == 1; };
  const std::size_t all = sweep().cases({}).size();
  EXPECT_LT(sweep().sample(small).cases({}).size(), all);
  EXPECT_EQ(sweep().sample(small).cases({{"ranks", "2"}}).size(),
            sweep().cases({{"ranks", "2"}}).size());
}

TEST(Sweep, Sizes) {
  EXPECT_EQ(sizes("8,4K,4KiB,1M,64MiB,1G,16B"),
            (std::vector<std::int64_t>{8, 4096, 4096, 1 << 20, 64 << 20, 1 << 30, 16}));
  EXPECT_EQ(sizes("1KiB:64KiB:x4"), (std::vector<std::int64_t>{1024, 4096, 16384, 65536}));
  EXPECT_EQ(sizes("8:64"), (std::vector<std::int64_t>{8, 16, 32, 64}));
  EXPECT_EQ(sizes("1KiB:3KiB:+1KiB"), (std::vector<std::int64_t>{1024, 2048, 3072}));
  EXPECT_EQ(sizes("8:100:x4,1M"), (std::vector<std::int64_t>{8, 32, 1 << 20}));
}

TEST(Sweep, IntegerRanges) {
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "1:8:x2"), (std::vector<int>{1, 2, 4, 8}));
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "2:4"), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "1:9:+4"), (std::vector<int>{1, 5, 9}));
}

TEST(Sweep, ErrorsNameAxisValueAndNearest) {
  const auto with = [](const char* axis, const char* text) {
    return message([=] { sweep().cases({{axis, text}}); });
  };
  EXPECT_EQ(with("algorithm", "rign"), "unknown --algorithm 'rign'; did you mean 'ring'?");
  EXPECT_EQ(with("algorithm", "zzzz"), "unknown --algorithm 'zzzz'; known: ring, direct, tree");
  EXPECT_EQ(with("dtype", "bfloat61"), "unknown --dtype 'bfloat61'; did you mean 'bfloat16'?");
  EXPECT_EQ(with("transport", "mpl"), "unknown --transport 'mpl'; did you mean 'mpi'?");
  EXPECT_EQ(with("ranks", "7"), "--ranks: 7 is not allowed; nearest: 8 (allowed: 1, 2, 4, 8)");
  EXPECT_EQ(with("byte", "8"), "unknown axis 'byte'; did you mean 'bytes'?");
  EXPECT_EQ(with("bytes", "8kb"), "--bytes: '8kb' is not a size like 8, 4KiB or 64MiB");
  EXPECT_EQ(with("bytes", "99999999999G"),
            "--bytes: '99999999999G' is not a size like 8, 4KiB or 64MiB");
  EXPECT_EQ(with("bytes", "64:8"), "--bytes: the range '64:8' ends before it begins");
  EXPECT_EQ(with("bytes", "0:8:x2"), "--bytes: the range '0:8:x2' never ends");
  EXPECT_EQ(with("bytes", "8:64:x1"), "--bytes: the range '8:64:x1' never ends");
  EXPECT_EQ(with("bytes", "8:64:4"),
            "--bytes: '8:64:4' is not a range first:last:xfactor or first:last:+step");
  EXPECT_EQ(with("overlap", "yes"), "--overlap: 'yes' is not on or off");
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.5", "0x10", "2147483648", "1,,2"})
    EXPECT_NE(with("ranks", text), "no UsageError") << "'" << text << "'";
}

TEST(Sweep, ProgrammersErrorsAreFound) {
  EXPECT_THROW(Sweep<Case>().axis("ranks", &Case::ranks, {1}).axis("ranks", &Case::ranks, {1}),
               std::logic_error);
  EXPECT_THROW(Sweep<Case>().axis("ranks", &Case::ranks, {3}, {1, 2}), UsageError);
}

TEST(Sweep, Profiles) {
  EXPECT_EQ(parse_profile("paper"), Profile::paper);
  EXPECT_EQ(message([] { parse_profile("papre"); }),
            "unknown --profile 'papre'; did you mean 'paper'?");
}

std::vector<PlannedCase> planned(const std::string& unit, const std::vector<AxisValues>& cases) {
  std::vector<PlannedCase> all;
  for (const AxisValues& axes : cases) {
    all.emplace_back();
    all.back().unit = unit;
    all.back().axes = axes;
  }
  return all;
}

TEST(Turns, ShowEveryPairOfValuesBeforeThirdTimes) {
  std::vector<AxisValues> product;
  for (const char* a : {"1", "2", "3"})
    for (const char* b : {"1", "2", "3"})
      for (const char* c : {"1", "2", "3"}) product.push_back({{"a", a}, {"b", b}, {"c", c}});
  const std::vector<PlannedCase> cases = planned("cube", product);
  std::vector<std::size_t> selected(cases.size());
  for (std::size_t i = 0; i < selected.size(); ++i) selected[i] = i;
  Turns turns(cases, selected);
  std::set<std::pair<std::string, std::string>> values;
  std::set<std::vector<std::pair<std::string, std::string>>> pairs;
  for (int taken = 1; const auto index = turns.next(); ++taken) {
    const AxisValues& axes = cases[*index].axes;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      values.insert(axes[i]);
      for (std::size_t j = 0; j < i; ++j) pairs.insert({axes[j], axes[i]});
    }
    turns.took(*index, 1);
    if (taken >= 3) {
      EXPECT_EQ(values.size(), 9u);  // a Latin square's diagonal
    }
    if (taken >= 9) {
      EXPECT_EQ(pairs.size(), 27u);  // and all of it
    }
    ASSERT_LE(taken, 27);
  }
  EXPECT_EQ(pairs.size(), 27u);
}

TEST(Turns, AreFairInTime) {
  std::vector<PlannedCase> cases = planned("slow", {{{"a", "1"}}, {{"a", "2"}}, {{"a", "3"}}});
  for (PlannedCase& quick : planned("quick", {{{"a", "1"}}, {{"a", "2"}}, {{"a", "3"}}}))
    cases.push_back(std::move(quick));
  Turns turns(cases, {0, 1, 2, 3, 4, 5});
  turns.took(4, 0);  // was run before
  std::vector<std::size_t> order;
  while (const auto index = turns.next()) {
    order.push_back(*index);
    turns.took(*index, *index < 3 ? 10 : 1);
  }
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 3, 5, 1, 2}));
}

}  // namespace
}  // namespace harness
