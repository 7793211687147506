#include "harness/record/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "harness/record/description.h"

namespace harness {
namespace {

constexpr Counter mine[] = {
    {"test_heat", "K", Better::lower, Nature::exact, "temperature of the test"},
    {"test_load/rank:N", "", Better::lower, Nature::measured, "load of a rank"}};
const bool registered = add_counters(mine);

TEST(Counters, PatternsMatchEveryRank) {
  ASSERT_TRUE(registered);
  EXPECT_EQ(find_counter("test_load/rank:12"), find_counter("test_load/rank:0"));
  EXPECT_EQ(find_counter("test_load/rank:0")->meaning, "load of a rank");
  EXPECT_EQ(find_counter("test_load/rank:"), nullptr);
  EXPECT_EQ(find_counter("test_load/rank:x"), nullptr);
  EXPECT_EQ(find_counter("test_load"), nullptr);
}

TEST(Counters, EqualRowsMayRepeatAndConflictingRowsMayNot) {
  EXPECT_TRUE(add_counters(mine));
  Counter other = mine[0];
  other.unit = "C";
  EXPECT_THROW(add_counters({&other, 1}), std::logic_error);
}

TEST(Counters, NamesOfTheHarnessAndOfTheFormatAreRejected) {
  for (const std::string_view name : {"busbw_GBps", "busy_s/rank:N", "real_time", "iterations"}) {
    const Counter row{name, "", Better::neither, Nature::measured, "mine"};
    EXPECT_THROW(add_counters({&row, 1}), std::logic_error) << name;
  }
}

TEST(Counters, CountersOfTheHarnessAreUnique) {
  std::set<std::string_view> names;
  for (const Counter& counter : harness_counters()) {
    EXPECT_TRUE(names.insert(counter.name).second) << counter.name;
    EXPECT_FALSE(is_record_key(counter.name)) << counter.name;
  }
}

TEST(Counters, TheTableHasALinePerCounter) {
  const std::string table = counters_table();
  EXPECT_NE(table.find("| `test_heat` | K | lower | exact | temperature of the test |\n"),
            std::string::npos);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(table, '\n')), all_counters().size() + 2);
}

TEST(Description, SetsOnlyDeclaredCountersOfUnits) {
  Description description(2);
  description.set("test_heat", 300);
  description.set("test_load/rank:3", 0.5);
  EXPECT_EQ(description.counters().size(), 2u);
  EXPECT_THROW(description.set("test_cold", 1), std::logic_error);
  EXPECT_THROW(description.set("speedup_over_library", 9), std::logic_error);
  EXPECT_THROW(description.set("busy_s/rank:0", 9), std::logic_error);
}

}  // namespace
}  // namespace harness
