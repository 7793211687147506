#include "harness/record/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "harness/json/json.h"
#include "harness/testing/example_runs.h"

namespace harness {
namespace {

std::vector<Json> events(const RunFolder& folder) {
  return Json::parse(folder.text("trace.json")).at("traceEvents").get<std::vector<Json>>();
}

Record traced(const std::string& name, std::vector<Span> spans) {
  Record record;
  record.name = name;
  record.trace = std::move(spans);
  return record;
}

// Rows of a trace viewer by name, with their spans in microseconds.
using Rows = std::map<std::string, std::vector<std::tuple<std::string, double, double>>>;
Rows rows(const std::vector<Json>& events) {
  std::map<int, std::string> names;
  for (const auto& event : events)
    if (event.at("name") == "thread_name")
      names[event.at("tid").get<int>()] = event.at("args").at("name").text();
  Rows rows;
  for (const auto& event : events)
    if (event.at("ph") == "X")
      rows[names.at(event.at("tid").get<int>())].emplace_back(
          event.at("name").text(), event.at("ts").get<double>(), event.at("dur").get<double>());
  return rows;
}

TEST(Trace, HasARowPerRankAndLaneAndCasesInSequence) {
  const RunFolder folder;
  TraceWriter writer(folder.path(""), 0);
  writer.add(0, traced("first", {{0, "compute", "forward", 0, 2e-3},
                                 {1, "compute", "forward", 0, 1e-3},
                                 {1, "progress", "communication dp", 1e-3, 5e-3}}));
  writer.add(1, traced("untraced", {}));
  writer.add(2, traced("second", {{0, "compute", "forward", 0, 1e-3},
                                  {0, "progress", "communication tp", 1e-3, 2e-3},
                                  {1, "compute", "forward", 0, 1.5e-3}}));
  const Rows expected{
      {"case", {{"first", 0, 5000}, {"second", 6000, 2000}}},
      {"rank 0, compute", {{"forward", 0, 2000}, {"forward", 6000, 1000}}},
      {"rank 0, progress", {{"communication tp", 7000, 1000}}},
      {"rank 1, compute", {{"forward", 0, 1000}, {"forward", 6000, 1500}}},
      {"rank 1, progress", {{"communication dp", 1000, 4000}}},
  };
  EXPECT_EQ(rows(events(folder)), expected);
  std::vector<std::string> names;  // in the order of their numbers, as in a viewer
  std::map<int, std::string> by_number;
  for (const auto& event : events(folder))
    if (event.at("name") == "thread_name") {
      EXPECT_TRUE(
          by_number.emplace(event.at("tid").get<int>(), event.at("args").at("name").text()).second);
    }
  for (const auto& [number, name] : by_number) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"case", "rank 0, compute", "rank 0, progress",
                                             "rank 1, compute", "rank 1, progress"}));
}

TEST(Trace, ContinuesAfterTheKeptCases) {
  const RunFolder folder;
  const Record one = traced("one", {{0, "compute", "forward", 0, 1.2345678e-3}}),
               two = traced("two", {{0, "progress", "communication", 0, 1e-3}}),
               three = traced("three", {{1, "compute", "forward", 0, 1e-3}});
  {
    TraceWriter writer(folder.path(""), 0);
    writer.add(0, one);
    writer.add(1, two);
    writer.add(2, three);
  }
  const auto whole = events(folder);
  {
    TraceWriter writer(folder.path(""), 1);
    EXPECT_EQ(rows(events(folder)).size(), 2U);
    writer.add(1, two);
    writer.add(2, three);
  }
  EXPECT_EQ(events(folder), whole);
  const TraceWriter anew(folder.path(""), 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("trace.json")));
}

}  // namespace
}  // namespace harness
