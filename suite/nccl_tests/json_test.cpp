// Keys and types as in the JSON file of nccl-tests, for programs that read both files.
#include "harness/json/json.h"
#include "suite/nccl_tests/json.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "harness/testing/test_folder.h"
#include "machine/base/error.h"

namespace suite::nccl_tests {
namespace {
using harness::Json;

Report report() {
  Report report;
  report.arguments = *parse_arguments({"all_gather", "-b", "8", "-e", "1K", "-f", "2", "-z", "1"});
  report.version = "0.1";
  report.start_time = "2026-01-31 23:59:58";
  report.end_time = "2026-01-31 23:59:59";
  report.transport = "mpi";
  report.command = {"shardmark", "collective"};
  report.environment = {"NCCL_ALGO=Ring"};
  report.ranks = {{0, 77, "node", "a \"CPU\""}};
  Row row;
  row.extent = {128, 1024};  // count, bytes
  row.reduction = "none";
  row.algorithm = "ring";
  row.out_of_place = {12.5, 2, 1, 3, "rank 0: 3 of 256", IterationTimes{{1, 2}, {{1, 2}, {1, 1}}}};
  report.rows = {row};
  report.totals.out_of_bounds = 1;
  report.totals.busbw_sum = 1;
  report.totals.placements = 1;
  return report;
}

TEST(NcclTestsJson, HasEveryKeyOfSchema3) {
  const Json json = Json::parse(nccl_tests::json(report()));
  EXPECT_EQ(json.at("version"), 3);
  EXPECT_EQ(json.at("start_time"), "2026-01-31 23:59:58");
  EXPECT_EQ(json.at("end_time"), "2026-01-31 23:59:59");
  EXPECT_EQ(json.at("args").size(), 2U);
  EXPECT_EQ(json.at("env")[0], "NCCL_ALGO=Ring");
  EXPECT_TRUE(json.at("nccl_version").is_null());
  EXPECT_TRUE(json.at("errors").is_array());
  const Json& config = json.at("config");
  for (const char* key :
       {"nthreads", "ngpus", "minimum_bytes", "maximum_bytes", "step_factor", "warmup_iters",
        "iterations", "aggregated_iterations", "validation", "graph", "per_iter_skip"})
    EXPECT_TRUE(config.at(key).is_number_integer()) << key;
  EXPECT_FALSE(config.contains("step_bytes"));
  EXPECT_EQ(config.at("blocking_collectives"), "true");
  EXPECT_EQ(config.at("per_iter_timing"), "false");
  EXPECT_EQ(config.at("parallel_init"), "false");
  const Json& device = config.at("devices")[0];
  EXPECT_EQ(device.at("rank"), 0);
  EXPECT_EQ(device.at("group"), 0);
  EXPECT_EQ(device.at("pid"), 77);
  EXPECT_EQ(device.at("hostname"), "node");
  EXPECT_EQ(device.at("device"), 0);
  EXPECT_EQ(device.at("device_hex"), "host");
  EXPECT_EQ(device.at("device_info"), "a \"CPU\"");
}

TEST(NcclTestsJson, HasEveryKeyOfAResult) {
  const Json json = Json::parse(nccl_tests::json(report()));
  const Json& result = json.at("results")[0];
  EXPECT_EQ(result.at("size"), 1024);
  EXPECT_EQ(result.at("count"), 128);
  EXPECT_EQ(result.at("type"), "float");
  EXPECT_EQ(result.at("redop"), "none");
  EXPECT_EQ(result.at("root"), "    -1");
  EXPECT_EQ(result.at("actual_iterations"), 20);
  EXPECT_EQ(result.at("experiment_name"), "");
  EXPECT_EQ(result.at("algorithm"), "ring");
  const Json& timing = result.at("out_of_place");
  EXPECT_EQ(timing.at("time"), 12.5);
  EXPECT_EQ(timing.at("alg_bw"), 2);
  EXPECT_EQ(timing.at("bus_bw"), 1);
  EXPECT_EQ(timing.at("nwrong"), 3);
  EXPECT_EQ(timing.at("wrong_where"), "rank 0: 3 of 256");
  EXPECT_TRUE(result.at("in_place").is_null());
  const Json& iterations = result.at("out_of_place_per_iter");
  for (const char* key : {"skipped_iterations", "min_us", "max_us", "avg_us", "p50_us", "p95_us",
                          "p99_us", "stdev_us", "cv_pct"})
    EXPECT_TRUE(iterations.at(key).is_number()) << key;
  EXPECT_EQ(iterations.at("times_us"), (Json{1, 2}));
  EXPECT_EQ(iterations.at("per_process_max_times_us")[1], (Json{1, 1}));

  EXPECT_EQ(json.at("out_of_bounds"), (Json{{"count", 1}, {"okay", "false"}}));
  EXPECT_EQ(json.at("average_bus_bandwidth"), (Json{{"bandwidth", 1.0}, {"okay", "unchecked"}}));
  EXPECT_EQ(json.at("shardmark").at("transport"), "mpi");
  EXPECT_FALSE(timing.contains("device_time"));
}

TEST(NcclTestsJson, HasTheTimesOfGpus) {
  Report r = report();
  r.rows.front().out_of_place->device_microseconds = 11.5;
  r.arguments.graph_launches = 4;
  const Json json = Json::parse(nccl_tests::json(r));
  EXPECT_EQ(json.at("results")[0].at("out_of_place").at("device_time"), 11.5);
  EXPECT_EQ(json.at("config").at("graph"), 4);
}

TEST(NcclTestsJson, VerdictsFollowTheTotals) {
  Report r = report();
  r.arguments.cpu_time = true;
  r.totals.out_of_bounds = 0;
  r.totals.least_busbw = 2;
  r.rows.front().out_of_place->wrong.reset();
  const Json json = Json::parse(nccl_tests::json(r));
  EXPECT_EQ(json.at("out_of_bounds").at("okay"), "true");
  EXPECT_EQ(json.at("average_bus_bandwidth").at("okay"), "false");
  const Json& timing = json.at("results")[0].at("out_of_place");
  EXPECT_EQ(timing.at("cpu_time"), 12.5);
  EXPECT_FALSE(timing.contains("time"));
  EXPECT_TRUE(timing.at("nwrong").is_null());
}

TEST(NcclTestsJson, NeverOverwritesAFile) {
  const harness::TestFolder folder;
  const std::string path = folder.path("x.json");
  EXPECT_EQ(claim_file(path), path);
  EXPECT_EQ(claim_file(path), path + ".0");
  EXPECT_EQ(claim_file(path), path + ".1");
  replace_file(path + ".0", "{}");
  EXPECT_EQ(folder.text("x.json.0"), "{}");
  EXPECT_EQ(std::filesystem::file_size(path), 0U);
  EXPECT_EQ(folder.files(), 3U);
  EXPECT_THROW(claim_file(folder.path("none/x.json")), machine::MachineError);
}

}  // namespace
}  // namespace suite::nccl_tests
