#include "harness/unit/unit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/measure/rates.h"
#include "machine/link/connect.h"

namespace harness {
namespace {

struct Complete {
  static constexpr std::string_view name = "complete";
  static constexpr std::string_view about = "has all a unit needs";
  static constexpr Oracle oracles[] = {Oracle::numerics};
  struct Case {
    int ranks = 1;
    machine::Dtype dtype = machine::Dtype::float32;
    Bytes bytes;
  };
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("dtype", &Case::dtype, machine::Dtype::bfloat16)
        .axis("ranks", &Case::ranks, 1)
        .axis("bytes", &Case::bytes, Bytes{1024})
        .slice({Profile::quick, Profile::paper}, "ranks", {vary(&Case::ranks, {1, 2})})
        .slice({Profile::paper}, "sizes",
               {vary(&Case::ranks, {1, 2}), vary(&Case::bytes, powers(1024, 4096, 2))});
  }
  Complete(const Case&, Context&) {}
  void prepare() {}
  void run() {}
  void judge(Judge&) {}
  Cost cost() const { return {}; }
};

// Each of these lacks one member, so it must not be a unit.
struct WithoutJudge : Complete {
  using Complete::Complete;
  void judge(Judge&) = delete;
};
struct WithoutCost : Complete {
  using Complete::Complete;
  Cost cost() const = delete;
};
struct WithoutOracles : Complete {
  using Complete::Complete;
  static void oracles() {}
};
struct WithoutRun : Complete {
  using Complete::Complete;
  void run() = delete;
};
struct NoJudgeAtAll {
  static constexpr std::string_view name = "no_judge";
  static constexpr std::string_view about = "is only measured";
  static constexpr Oracle oracles[] = {Oracle::numerics};
  using Case = Complete::Case;
  static Sweep<Case> sweep() { return Complete::sweep(); }
  NoJudgeAtAll(const Case&, Context&);
  void prepare();
  void run();
  Cost cost() const;
};
struct EmptyOracles : Complete {
  using Complete::Complete;
  static constexpr std::span<const Oracle> oracles = {};
};
static_assert(UnitType<Complete>);
static_assert(!UnitType<WithoutJudge>);
static_assert(!UnitType<NoJudgeAtAll>);
static_assert(!UnitType<WithoutCost>);
static_assert(!UnitType<WithoutOracles>);
static_assert(!UnitType<EmptyOracles>);
static_assert(!UnitType<WithoutRun>);

struct Another : Complete {
  using Complete::Complete;
  static constexpr std::string_view name = "another";
  static constexpr bool repeatable = false;
  struct Case {
    int ranks = 1;
    std::string algorithm;
  };
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("algorithm", &Case::algorithm, "ring", {"ring", "tree"})
        .axis("ranks", &Case::ranks, 2, {2, 4})
        .slice({Profile::quick}, "ranks", {vary(&Case::ranks, {2, 4})});
  }
  Another(const Case& the_case, Context& context)
      : Complete({the_case.ranks, machine::Dtype::float32, {8}}, context) {}
  static std::string why_not(const Case& the_case, const Context&) {
    return the_case.ranks > 2 ? "too many ranks" : "";
  }
  void yardstick() {}
};

struct WithoutRanks : Complete {
  using Complete::Complete;
  static Sweep<Case> sweep() {
    return Sweep<Case>().axis("bytes", &Case::bytes, Bytes{8}).slice({Profile::quick}, "all");
  }
};

const bool registered = add<Complete>() && add<Another>();

std::string message(const std::vector<std::string>& units, const AxisFlags& flags) {
  try {
    plan_cases(units, {Profile::quick, flags});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(Registry, SortsByNameAndRejectsDuplicates) {
  ASSERT_TRUE(registered);
  std::vector<std::string_view> names;
  for (const Family* family : families()) names.push_back(family->name());
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::ranges::count(names, "complete"), 1);
  EXPECT_THROW(add<Complete>(), std::logic_error);
}

TEST(Plan, NamesAndSlicesOfCases) {
  const auto cases = plan_cases({"complete"}, {Profile::quick});
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[1].name, "complete/ranks:2");
  EXPECT_EQ(cases[1].ranks, 2);
  EXPECT_EQ(cases[1].unit, "complete");
  EXPECT_EQ(cases[1].slice, "ranks");
  const auto paper = plan_cases({"complete"}, {Profile::paper});
  ASSERT_EQ(paper.size(), 6u);
  EXPECT_EQ(paper[1].slice, "ranks") << "the first slice that has it";
  EXPECT_EQ(paper[2].slice, "sizes");
}

TEST(CaseName, ShowsRanksAndTheAxesThatDifferFromTheDefaults) {
  EXPECT_EQ(case_name("another", {{"algorithm", "ring"}, {"ranks", "2"}}), "another/ranks:2");
  EXPECT_EQ(case_name("another", {{"algorithm", "tree"}, {"ranks", "2"}}),
            "another/algorithm:tree/ranks:2");
  EXPECT_EQ(case_name("unknown", {{"bytes", "8"}}), "unknown/bytes:8");
}

TEST(CaseName, CompletesTheAxes) {
  const AxisValues tree{{"algorithm", "tree"}, {"ranks", "4"}};
  EXPECT_EQ(read_case_name("another/ranks:4/algorithm:tree").axes, tree);
  EXPECT_EQ(read_case_name("another").axes, (AxisValues{{"algorithm", "ring"}, {"ranks", "2"}}));
  EXPECT_EQ(read_case_name("unknown/bytes:8").axes, (AxisValues{{"bytes", "8"}}));
  EXPECT_EQ(read_case_name("unknown/bytes:8").unit, "unknown");
}

TEST(Plan, ANamedCaseIsOneCaseOfAnyProfile) {
  const auto tree = plan_cases({"another/algorithm:tree/ranks:4"}, {Profile::quick});
  ASSERT_EQ(tree.size(), 1u);
  EXPECT_EQ(tree[0].name, "another/algorithm:tree/ranks:4");
  const auto both = plan_cases({"another/ranks:2", "another"}, {Profile::quick});
  ASSERT_EQ(both.size(), 2u) << "the unit repeats the case";
  EXPECT_EQ(both[0].name, "another/ranks:2");
  EXPECT_EQ(message({"another/algorithm:trea"}, {}),
            "unknown --algorithm 'trea'; did you mean 'tree'?");
  EXPECT_EQ(message({"another/rank:2"}, {}), "unknown axis 'rank'; did you mean 'ranks'?");
  EXPECT_EQ(message({"another_/ranks:2"}, {}), "unknown unit 'another_'; did you mean 'another'?");
  EXPECT_EQ(message({"another/ranks:2"}, {{"ranks", "4"}}),
            "--ranks is 4; the case 'another/ranks:2' determines all axes");
}

// Counts the cases of this file's units. Other tests of the program register theirs.
std::ptrdiff_t planned_unnamed(const AxisFlags& flags) {
  const auto cases = plan_cases({}, {Profile::quick, flags});
  return std::ranges::count_if(
      cases, [](const PlannedCase& c) { return c.unit == "complete" || c.unit == "another"; });
}

TEST(Plan, AllUnitsWhenNoneIsNamed) { EXPECT_EQ(planned_unnamed({}), 4); }

TEST(Plan, FlagsActOnTheUnitsThatHaveThem) {
  EXPECT_EQ(planned_unnamed({{"bytes", "8,16"}}), 2 + 4);
}

TEST(Plan, ErrorsNameTheNearest) {
  EXPECT_EQ(message({"complet"}, {}), "unknown unit 'complet'; did you mean 'complete'?");
  EXPECT_EQ(message({"complete"}, {{"algorithm", "ring"}}),
            "unknown flag '--algorithm'; known: --bytes, --dtype, --ranks");
  EXPECT_EQ(message({}, {{"byte", "8"}}), "unknown flag '--byte'; did you mean '--bytes'?");
  EXPECT_EQ(message({"another"}, {{"algorithm", "trea"}}),
            "unknown --algorithm 'trea'; did you mean 'tree'? (unit another)");
}

TEST(Plan, AValueMustBeAllowedByNamedUnits) {
  EXPECT_EQ(message({"another", "complete"}, {{"ranks", "1"}}),
            "--ranks is 1; expected one of 2, 4 (nearest: 2) (unit another)");
  // No name selects `another`, so it is left out.
  EXPECT_EQ(planned_unnamed({{"ranks", "1"}}), 1);
  const std::string refused = message({}, {{"ranks", "many"}});
  EXPECT_NE(refused.find("many"), std::string::npos) << refused;
  EXPECT_TRUE(refused.ends_with("(unit another)")) << refused;
}

TEST(Plan, WithoutRanksIsAProgrammersError) {
  EXPECT_THROW(detail::FamilyOf<WithoutRanks>().cases({}), std::logic_error);
}

struct OnATransport : Complete {
  using Complete::Complete;
  struct Case {
    int ranks = 1;
    machine::Transport transport{};
    std::string algorithm;
  };
  static constexpr bool limit_applies = true;
  static bool equal_work(const Case& the_case) { return the_case.algorithm == "ring"; }
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("transport", &Case::transport, machine::Transport::nccl)
        .axis("algorithm", &Case::algorithm, "ring")
        .axis("ranks", &Case::ranks, 1)
        .slice({Profile::quick}, "algorithms", {vary(&Case::algorithm, {"ring", "tree"})});
  }
  OnATransport(const Case&, Context& context) : Complete({}, context) {}
};

// Its trees can pass memory of CUDA devices. Its rings pass memory of the host.
struct SomeOverDeviceLinks : OnATransport {
  using OnATransport::OnATransport;
  static Sweep<Case> sweep() {
    using enum machine::Transport;
    return Sweep<Case>()
        .axis("transport", &Case::transport, shared_memory)
        .axis("algorithm", &Case::algorithm, "ring")
        .axis("ranks", &Case::ranks, 1)
        .only([](const Case& c) {
          return c.algorithm == "ring" && machine::between_devices(c.transport)
                     ? "rings are on the host"
                     : "";
        })
        .slice({Profile::quick}, "algorithms", {vary(&Case::algorithm, {"ring", "tree"})})
        .slice({Profile::quick}, "transports", {vary(&Case::transport, {mpi})});
  }
};
struct NoneOverDeviceLinks : OnATransport {
  using OnATransport::OnATransport;
  static Sweep<Case> sweep() {
    return SomeOverDeviceLinks::sweep().only([](const Case& c) {
      return machine::between_devices(c.transport) ? "it sends host memory" : "";
    });
  }
};

// "ring over mpi", of each case.
template <class U>
std::vector<std::string> planned(const AxisFlags& flags, machine::Device::Kind device) {
  std::vector<std::string> found;
  try {
    for (const PlannedCase& one : detail::FamilyOf<U>().cases({Profile::quick, flags, device})) {
      const auto& [transport, algorithm] = std::pair(one.axes.at(0).second, one.axes.at(1).second);
      found.push_back(algorithm + " over " + transport);
    }
  } catch (const UsageError& error) {
    found = {error.what()};
  }
  return found;
}

TEST(Plan, OnCudaCasesUseLinksBetweenDevicesIfTheyCan) {
  using enum machine::Device::Kind;
  using Texts = std::vector<std::string>;
  const Texts on_host{"ring over shared_memory", "tree over shared_memory", "ring over mpi"};
  EXPECT_EQ(planned<SomeOverDeviceLinks>({}, host), on_host);
  EXPECT_EQ(
      planned<SomeOverDeviceLinks>({}, cuda),
      (Texts{"ring over shared_memory", "ring over mpi", "tree over cuda_ipc", "tree over nccl"}));
  EXPECT_EQ(planned<NoneOverDeviceLinks>({}, cuda), on_host);
  EXPECT_EQ(planned<SomeOverDeviceLinks>({{"transport", "mpi"}}, cuda),
            (Texts{"ring over mpi", "tree over mpi"}));
  EXPECT_EQ(planned<SomeOverDeviceLinks>({{"transport", "nccl"}}, cuda), Texts{"tree over nccl"});
  // The values of a flag that only some cases can use over these links.
  EXPECT_EQ(
      planned<SomeOverDeviceLinks>({{"algorithm", "ring,tree"}}, cuda),
      (Texts{"ring over shared_memory", "ring over mpi", "tree over cuda_ipc", "tree over nccl"}));
  EXPECT_EQ(planned<NoneOverDeviceLinks>({{"transport", "nccl"}}, cuda),
            Texts{"transport nccl: rings are on the host"});
}

TEST(Plan, TraitsDependOnTheCase) {
  const auto cases = detail::FamilyOf<OnATransport>().cases({});
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_EQ(cases[0].traits, (Traits{true, true, false}));
  EXPECT_EQ(cases[1].traits, (Traits{false, true, false}));
  EXPECT_EQ(plan_cases({"another"}, {Profile::quick})[0].traits, Traits{});
}

// A unit without its own why_not is skipped if the world lacks its transport.
TEST(Plan, AMissingTransportIsAReasonToSkip) {
  const auto cases = detail::FamilyOf<OnATransport>().cases({});
  machine::run_ranks(1, [&](machine::World& world) {
    const Rates rates;
    const Context context{world, machine::first_ranks("world", 1, 0), world.device(), rates};
    EXPECT_EQ(cases[0].why_not(context),
              machine::why_not(world, context.group, machine::Transport::nccl));
    EXPECT_NE(cases[0].why_not(context), "");
  });
}

TEST(Plan, OptionalMembersAreFound) {
  machine::run_ranks(1, [](machine::World& world) {
    const Rates rates;
    Context context{world, machine::first_ranks("world", 1, 0), world.device(), rates};
    EXPECT_TRUE(detail::InstanceOf<Complete>({}, context).repeatable());
    EXPECT_FALSE(detail::InstanceOf<Another>({}, context).repeatable());
  });
}

}  // namespace
}  // namespace harness
