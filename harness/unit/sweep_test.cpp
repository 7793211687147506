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

// Only axes. The tests add slices.
Sweep<Case> axes() {
  return Sweep<Case>()
      .axis("algorithm", &Case::algorithm, "ring", {"ring", "direct", "tree"})
      .axis("dtype", &Case::dtype, Dtype::float32)
      .axis("transport", &Case::transport, Transport::shared_memory)
      .axis("overlap", &Case::overlap, false)
      .axis("ranks", &Case::ranks, 2, {1, 2, 4, 8})
      .axis("bytes", &Case::bytes, Bytes{8});
}

constexpr Profile quick = Profile::quick;

Sweep<Case> sweep() {
  return axes().slice({quick, Profile::acceptance}, "sizes",
                      {vary(&Case::bytes, powers(8, 32, 4)),
                       vary(&Case::algorithm, {"ring", "direct"}), vary(&Case::ranks, {1, 2, 4})});
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

TEST(Sweep, ASliceIsTheProductWithTheFirstAxisSlowest) {
  const auto cases = sweep().cases(quick, {});
  ASSERT_EQ(cases.size(), 2u * 3u * 2u);
  EXPECT_EQ(cases[0].the_case.algorithm, "ring");
  EXPECT_EQ(cases[0].the_case.ranks, 1);
  EXPECT_EQ(cases[1].the_case.bytes, Bytes{32});
  EXPECT_EQ(cases.back().the_case.algorithm, "direct");
  EXPECT_EQ(cases.back().the_case.transport, Transport::shared_memory);
  EXPECT_EQ(cases.back().slice, "sizes");
}

TEST(Sweep, AProfileIsTheUnionOfItsSlices) {
  const Sweep<Case> both =
      sweep()
          .slice({Profile::acceptance}, "trees", {vary(&Case::algorithm, {"tree"})})
          .slice({Profile::acceptance}, "again",
                 {vary(&Case::algorithm, {"direct"}), vary(&Case::ranks, {4, 8})});
  EXPECT_EQ(both.cases(quick, {}).size(), 12u);
  EXPECT_TRUE(both.cases(Profile::paper, {}).empty());
  const auto cases = both.cases(Profile::acceptance, {});
  ASSERT_EQ(cases.size(), 14u) << "a case of two slices counts once";
  EXPECT_EQ(cases[12].slice, "trees");
  EXPECT_EQ(cases[13].the_case.ranks, 8);
  EXPECT_EQ(both.axes(Profile::acceptance)[0].values,
            (std::vector<std::string>{"ring", "direct", "tree"}));
  EXPECT_EQ(both.axes(quick)[4].values, (std::vector<std::string>{"1", "2", "4"}));
  EXPECT_EQ(both.axes(quick)[1].values, std::vector<std::string>{"float"});
}

TEST(Sweep, AFieldMayBeAFunction) {
  constexpr auto ranks = +[](Case& c) -> int& { return c.ranks; };
  const auto cases = Sweep<Case>()
                         .axis("tp", ranks, 1)
                         .slice({quick}, "all", {vary(ranks, {2, 3})})
                         .cases(quick, {});
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[1].the_case.ranks, 3);
}

TEST(Sweep, ADiagonalCoversEveryPairOfValues) {
  std::set<std::pair<int, int>> pairs;
  std::size_t all = 0;
  for (const std::size_t at : {0, 1, 2}) {
    const Sweep<Case> third =
        axes().slice({quick}, "third",
                     {vary(&Case::algorithm, {"ring", "direct", "tree"}),
                      vary(&Case::ranks, {1, 2, 4}), vary(&Case::bytes, powers(8, 32, 2))},
                     {3, at});
    const auto cases = third.cases(quick, {});
    EXPECT_EQ(cases.size(), 9u);
    all += cases.size();
    pairs.clear();
    for (const auto& one : cases)
      pairs.emplace(one.the_case.ranks, static_cast<int>(one.the_case.bytes.value));
    EXPECT_EQ(pairs.size(), 9u);
    EXPECT_EQ(third.cases(quick, {{"ranks", "2"}}).size(), 9u) << "the whole product of the others";
    EXPECT_EQ(third.cases(quick, {{"overlap", "off,on"}}).size(), 18u) << "no axis of the slice";
  }
  EXPECT_EQ(all, 27u);
}

TEST(Sweep, PowersIncludeTheLimit) {
  EXPECT_EQ(powers(8, 127, 4), (std::vector<Bytes>{{8}, {32}}));
  EXPECT_EQ(powers(8, 128, 4), (std::vector<Bytes>{{8}, {32}, {128}}));
  EXPECT_EQ(powers(1, std::int64_t{1} << 62, 2).size(), 63u);
}

TEST(Sweep, FlagsReplaceValuesInEverySlice) {
  const Sweep<Case> two = sweep().slice({quick}, "trees", {vary(&Case::algorithm, {"tree"})});
  const auto cases = two.cases(
      quick, {{"bytes", "1KiB"}, {"ranks", "8"}, {"algorithm", "tree"}, {"overlap", "on"}});
  ASSERT_EQ(cases.size(), 1u) << "both slices have become the same case";
  EXPECT_TRUE(cases[0].the_case.overlap);
  const AxisValues expected = {
      {"algorithm", "tree"}, {"dtype", "float"}, {"transport", "shared_memory"},
      {"overlap", "on"},     {"ranks", "8"},     {"bytes", "1024"}};
  EXPECT_EQ(cases[0].axes, expected);
  EXPECT_EQ(two.cases(quick, {{"dtype", "float,half"}}).size(), 2u * 13u);
}

TEST(Sweep, ValuesGivenTwiceCountOnce) {
  EXPECT_EQ(sweep().cases(quick, {{"bytes", "1K,1KiB,1024"}}).size(), 6u);
}

TEST(Sweep, OnlyExcludesCases) {
  const auto several = [](const Case& c) {
    return c.ranks > 1 ? std::string() : std::string("one rank has nobody to talk to");
  };
  const Sweep<Case> some = sweep().only(several).slice({quick}, "one", {vary(&Case::ranks, {1})});
  EXPECT_EQ(some.cases(quick, {}).size(), 8u);
  EXPECT_EQ(some.cases(quick, {{"ranks", "2"}}).size(), 4u);
  EXPECT_EQ(message([&] {
              some.cases(quick, {{"ranks", "1,2"}});
            }),
            "ranks 1: one rank has nobody to talk to");
  EXPECT_EQ(message([&] {
              some.cases(quick, {{"ranks", "1"}, {"algorithm", "ring"}});
            }),
            "one rank has nobody to talk to")
      << "and the ring has no part in it";
}

TEST(Sweep, Sizes) {
  EXPECT_EQ(sizes("8,4K,4KiB,1M,64MiB,1G,16B"),
            (std::vector<std::int64_t>{8, 4096, 4096, 1 << 20, 64 << 20, 1 << 30, 16}));
  EXPECT_EQ(sizes("1KiB:64KiB:x4"), (std::vector<std::int64_t>{1024, 4096, 16384, 65536}));
  EXPECT_EQ(sizes("8:64"), (std::vector<std::int64_t>{8, 16, 32, 64}));
  EXPECT_EQ(sizes("1KiB:3KiB:+1KiB"), (std::vector<std::int64_t>{1024, 2048, 3072}));
  EXPECT_EQ(sizes("8:100:x4,1M"), (std::vector<std::int64_t>{8, 32, 1 << 20}));
}

TEST(Sweep, BooleansAreWrittenOnOrOff) {
  EXPECT_EQ(AxisText<bool>::parse_list("overlap", "on,1,true,off,0,false"),
            (std::vector<bool>{true, true, true, false, false, false}));
  const auto cases = sweep().cases(quick, {{"overlap", "0,1,off"}});
  std::set<std::string> values;
  for (const auto& selected : cases)
    for (const auto& [axis, value] : selected.axes)
      if (axis == "overlap") values.insert(value);
  EXPECT_EQ(values, (std::set<std::string>{"off", "on"}));
}

TEST(Sweep, IntegerRanges) {
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "1:8:x2"), (std::vector<int>{1, 2, 4, 8}));
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "2:4"), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(AxisText<int>::parse_list("ranks", "1:9:+4"), (std::vector<int>{1, 5, 9}));
}

TEST(Sweep, ErrorsNameAxisValueAndNearest) {
  const auto with = [](const char* axis, const char* text) {
    return message([=] { sweep().cases(quick, {{axis, text}}); });
  };
  EXPECT_EQ(with("algorithm", "rign"), "unknown --algorithm 'rign'; did you mean 'ring'?");
  EXPECT_EQ(with("algorithm", "zzzz"), "unknown --algorithm 'zzzz'; known: ring, direct, tree");
  EXPECT_EQ(with("dtype", "bfloat61"), "unknown --dtype 'bfloat61'; did you mean 'bfloat16'?");
  EXPECT_EQ(with("transport", "mpl"), "unknown --transport 'mpl'; did you mean 'mpi'?");
  EXPECT_EQ(with("ranks", "7"), "--ranks is 7; expected one of 1, 2, 4, 8 (nearest: 8)");
  EXPECT_EQ(with("byte", "8"), "unknown axis 'byte'; did you mean 'bytes'?");
  EXPECT_EQ(with("bytes", "8kb"), "--bytes is '8kb'; expected a size (example: 8, 4KiB, 64MiB)");
  EXPECT_EQ(with("bytes", "99999999999G"),
            "--bytes is '99999999999G'; expected a size (example: 8, 4KiB, 64MiB)");
  EXPECT_EQ(with("bytes", "64:8"), "--bytes: the range '64:8' ends before it begins");
  EXPECT_EQ(with("bytes", "0:8:x2"), "--bytes: the range '0:8:x2' never ends");
  EXPECT_EQ(with("bytes", "8:64:x1"), "--bytes: the range '8:64:x1' never ends");
  EXPECT_EQ(with("bytes", "8:64:4"),
            "--bytes is '8:64:4'; expected a range first:last:xfactor or first:last:+step");
  EXPECT_EQ(with("overlap", "yes"), "--overlap is 'yes'; expected on or off");
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1.5", "0x10", "2147483648", "1,,2"})
    EXPECT_NE(with("ranks", text), "no UsageError") << "'" << text << "'";
}

TEST(Sweep, ProgrammersErrorsAreFound) {
  EXPECT_THROW(Sweep<Case>().axis("ranks", &Case::ranks, 1).axis("ranks", &Case::ranks, 1),
               std::logic_error);
  EXPECT_THROW(Sweep<Case>().axis("ranks", &Case::ranks, 1).axis("tp", &Case::ranks, 1),
               std::logic_error);
  EXPECT_THROW(Sweep<Case>().axis("ranks", &Case::ranks, 3, {1, 2}), UsageError);
  EXPECT_THROW(
      axes().slice({quick}, "no axis", {vary(+[](Case& c) -> int& { return c.ranks; }, {1})}),
      std::logic_error);
  EXPECT_THROW(axes().slice({quick}, "twice", {vary(&Case::ranks, {1}), vary(&Case::ranks, {2})}),
               std::logic_error);
  EXPECT_THROW(axes().slice({quick}, "refused", {vary(&Case::ranks, {3})}), UsageError);
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

TEST(Turns, CoverEveryValueAndPairEarly) {
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
      EXPECT_EQ(pairs.size(), 27u);  // the whole Latin square
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
