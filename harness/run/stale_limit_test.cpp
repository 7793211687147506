// A case that is faster than its limit shows that a rate was measured too low.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "harness/run/case_runner.h"
#include "harness/unit/unit.h"
#include "machine/world/world.h"

namespace harness {
namespace {

// Takes 2 ms, or no time, and needs some bytes of memory.
struct Timed {
  static constexpr std::string_view name = "timed";
  static constexpr std::string_view about = "has a known limit";
  static constexpr Oracle oracles[] = {Oracle::numerics};
  struct Case {
    int ranks = 2;
    bool sleeps = true;
  };
  static Sweep<Case> sweep() {
    return Sweep<Case>()
        .axis("sleeps", &Case::sleeps, true)
        .axis("ranks", &Case::ranks, 2)
        .slice({Profile::quick}, "both", {vary(&Case::sleeps, {true, false})});
  }
  Timed(const Case& the_case, Context&) : sleeps_(the_case.sleeps) {}
  void prepare() {}
  void run() {
    if (sleeps_) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  void judge(Judge& judge) {
    const double one[] = {1};
    judge.exact("payload", one, one);
  }
  Cost cost() const { return {.memory_bytes = 2e5, .working_set_bytes = 4096}; }

 private:
  bool sleeps_;
};

Record run_with(bool sleeps, const std::function<void(Rates&)>& set, bool measures = true) {
  Record record;
  machine::run_ranks(2, [&](machine::World& world) {
    RunOptions options;
    options.max_seconds_per_case = 0.05;
    options.measure_rates = measures;
    world.set_active_ranks(2);
    CaseRunner runner(world, options);
    set(runner.rates());
    Record mine;
    runner.run(detail::FamilyOf<Timed>().cases({}).at(sleeps ? 0 : 1), 0, mine);
    if (world.rank() == 0) record = std::move(mine);
  });
  EXPECT_EQ(record.verdict, Ruling::pass) << record.reason;
  return record;
}

TEST(StaleLimit, IsMeasuredAgain) {
  const Record record = run_with(true, [](Rates& rates) { rates.set_memory(2, 4096, 1); });
  EXPECT_EQ(record.counters.at("limit_measured_again"), 1);
  EXPECT_LT(record.counters.at("limit_fraction"), 1);
  EXPECT_DOUBLE_EQ(record.counters.at("limit_fraction"),
                   record.counters.at("limit_s") / record.seconds);
  EXPECT_FALSE(record.counters.contains("limit_is_stale"));
  EXPECT_EQ(record.note, "");
}

TEST(StaleLimit, IsStatedIfItStays) {
  const Record record = run_with(false, [](Rates& rates) { rates.set_memory(2, 4096, 1); });
  EXPECT_EQ(record.counters.at("limit_measured_again"), 1);
  EXPECT_EQ(record.counters.at("limit_is_stale"), 1);
  EXPECT_GT(record.counters.at("limit_fraction"), 1);
  EXPECT_NE(record.note.find(" % of its limit, measured again: the copy rate was measured too low"),
            std::string::npos)
      << record.note;
}

TEST(StaleLimit, IsNotMeasuredAgainWithoutCause) {
  const Record record = run_with(true, [](Rates& rates) { rates.set_memory(2, 4096, 1e12); });
  EXPECT_LT(record.counters.at("limit_fraction"), 1);
  EXPECT_FALSE(record.counters.contains("limit_measured_again"));
  const Record unmeasured = run_with(false, [](Rates&) {});
  EXPECT_FALSE(unmeasured.counters.contains("limit_s"));
}

// --no-limits measures nothing.
TEST(StaleLimit, IsStatedIfRatesAreNotMeasured) {
  const Record record = run_with(
      false, [](Rates& rates) { rates.set_memory(2, 4096, 1); }, false);
  EXPECT_FALSE(record.counters.contains("limit_measured_again"));
  EXPECT_EQ(record.counters.at("limit_is_stale"), 1);
}

}  // namespace
}  // namespace harness
