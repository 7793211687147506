// A unit declared only in this file. Its declarations make the search for slow ranks cover it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/diagnose/health.h"
#include "harness/record/run_json.h"
#include "harness/run/case_runner.h"
#include "harness/testing/test_folder.h"
#include "harness/unit/unit.h"

namespace harness {
namespace {

struct NewUnit {
  static constexpr std::string_view name = "new_unit";
  static constexpr std::string_view about = "is declared in one file";
  static constexpr Oracle oracles[] = {Oracle::numerics};
  struct Case {
    int ranks = 3;
    int number = 0;
    bool even = true;
  };
  static bool equal_work(const Case& the_case) { return the_case.even; }
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("number", &Case::number, 1)
        .axis("ranks", &Case::ranks, 3)
        .slice({Profile::quick}, "numbers", {vary(&Case::number, {1, 2, 3, 4, 5, 6})});
  }
  NewUnit(const Case&, Context&) {}
  void prepare() {}
  void run() {}
  void judge(Judge&) {}
  Cost cost() const { return {}; }
};

struct Uneven : NewUnit {
  using NewUnit::NewUnit;
  static constexpr bool equal_work = false;
};

// Returns the findings of a stored run in which rank 2 is busy for longer.
template <class Unit>
std::string findings_of_a_slow_rank() {
  const TestFolder folder;
  RunContext context;
  RunWriter writer(context, folder.path("run"));
  for (const PlannedCase& plan : detail::FamilyOf<Unit>().cases({})) {
    Record record = skipped(plan, 0, "");
    record.verdict = Ruling::pass;
    record.counters["samples"] = 100;
    for (int rank = 0; rank < 3; ++rank)
      for (const auto& [name, value] : {std::pair("busy_s", rank == 2 ? 0.02 : 0.01),
                                        {"delayed_s", 0.0},
                                        {"delayed_fraction", 0.0},
                                        {"spikes", 0.0}})
        record.counters[fmt::format("{}/rank:{}", name, rank)] = value;
    writer.add(record);
  }
  context.status = "complete";
  writer.finish(context);
  std::string text;
  for (const Finding& finding : health_of(read_run(folder.path("run")), "").findings)
    text += fmt::format("{} {};", finding.kind, fmt::join(finding.ranks, " "));
  return text;
}

TEST(NewUnit, IsSearchedForSlowRanksIfItDeclaresEqualWork) {
  EXPECT_EQ(findings_of_a_slow_rank<NewUnit>(), "slow rank 2;");
  EXPECT_EQ(findings_of_a_slow_rank<Uneven>(), "");
}

}  // namespace
}  // namespace harness
