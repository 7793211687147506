// Findings of health in the facts of the GPUs' driver, and facts that are not findings.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/diagnose/health.h"
#include "harness/json/json.h"

namespace harness {
namespace {
Json healthy(const std::string& uuid) {
  return {{"uuid", uuid},
          {"ecc_uncorrected_volatile", 0},
          {"ecc_uncorrected_aggregate", 3},
          {"rows_remapped_uncorrected", 1},
          {"rows_remapped_corrected", 0},
          {"row_remap_pending", 0},
          {"row_remap_failed", 0},
          {"throttle_reasons", 1 | 4},
          {"thermal_slowdown_ns", 5'000'000'000},
          {"clock_sm_mhz", 1200},
          {"clock_sm_max_mhz", 1980},
          {"temperature_C", 60},
          {"pcie_lanes", 16},
          {"pcie_lanes_max", 16},
          {"nvlinks", 18},
          {"nvlinks_active", 12}};
}

// Returns a launch of four ranks with a GPU each.
Json launch() {
  Json ranks = Json::array();
  for (int rank = 0; rank < 4; ++rank) {
    const Json facts = healthy(fmt::format("GPU-{}", rank));
    ranks.push_back({{"rank", rank}, {"before", facts}, {"after", facts}});
  }
  return ranks;
}

// Returns the findings in order, for example "GPU memory 2".
std::string found(const Json& launch, std::string* evidence = nullptr) {
  const Json environment{{"gpu_health", Json::array({launch})}};
  std::string text;
  for (const Finding& finding : health_of(RunFile{}, environment.dump()).findings) {
    text += fmt::format("{}{} {}", text.empty() ? "" : "; ", name(finding.level), finding.kind);
    for (const int rank : finding.ranks) text += fmt::format(" {}", rank);
    if (evidence) *evidence = finding.evidence;
  }
  return text;
}

// Returns the findings after rank 2's driver reports another value.
std::string found_with(const char* fact, std::int64_t after, std::string* evidence = nullptr) {
  Json ranks = launch();
  ranks[2]["after"][fact] = after;
  return found(ranks, evidence);
}

TEST(FailingGpus, AHealthyRunHasNoFinding) {
  EXPECT_EQ(found(launch()), "");
  EXPECT_EQ(found_with("temperature_C", 85), "");
  EXPECT_EQ(found_with("thermal_slowdown_ns", 5'500'000'000), "");
  EXPECT_EQ(found_with("nvlinks_active", 12), "");
  // Counters are 0 after a reset.
  EXPECT_EQ(found_with("ecc_uncorrected_aggregate", 0), "");
}

TEST(FailingGpus, MemoryErrorsThatAppear) {
  std::string evidence;
  EXPECT_EQ(found_with("ecc_uncorrected_volatile", 2, &evidence), "CRITICAL GPU memory 2");
  EXPECT_EQ(evidence, "2 uncorrected memory (ECC) errors during the run");
  EXPECT_EQ(found_with("ecc_uncorrected_aggregate", 4), "CRITICAL GPU memory 2");
  EXPECT_EQ(found_with("rows_remapped_uncorrected", 2, &evidence), "WARN GPU memory 2");
  EXPECT_EQ(evidence, "1 row of its memory remapped during the run");
  EXPECT_EQ(found_with("rows_remapped_corrected", 1), "WARN GPU memory 2");
  EXPECT_EQ(found_with("row_remap_pending", 1), "WARN GPU memory 2");
  EXPECT_EQ(found_with("row_remap_failed", 1), "CRITICAL GPU memory 2");
  Json ranks = launch();
  ranks[1]["before"]["pages_retired"] = 1;
  ranks[1]["after"]["pages_retired"] = 3;
  EXPECT_EQ(found(ranks, &evidence), "WARN GPU memory 1");
  EXPECT_EQ(evidence, "2 pages of its memory retired during the run");
}

TEST(FailingGpus, SlowedByHeatOrPowerSupply) {
  std::string evidence;
  EXPECT_EQ(found_with("throttle_reasons", 0x40, &evidence), "WARN slowed GPU 2");
  EXPECT_EQ(evidence,
            "its clock was lowered by heat; 60 degrees C after the run, 1200 of 1980 MHz");
  EXPECT_EQ(found_with("throttle_reasons", 0x20), "WARN slowed GPU 2");
  EXPECT_EQ(found_with("throttle_reasons", 0x80, &evidence), "WARN slowed GPU 2");
  EXPECT_NE(evidence.find("by the power supply;"), std::string::npos) << evidence;
  EXPECT_EQ(found_with("thermal_slowdown_ns", 7'000'000'000, &evidence), "WARN slowed GPU 2");
  EXPECT_NE(evidence.find("by heat (2.0 s);"), std::string::npos) << evidence;
}

TEST(FailingGpus, Links) {
  std::string evidence;
  EXPECT_EQ(found_with("pcie_lanes", 8, &evidence), "WARN narrow PCIe 2");
  EXPECT_EQ(evidence, "8 of 16 lanes in use");
  EXPECT_EQ(found_with("nvlinks_active", 11, &evidence), "WARN inactive NVLink 2");
  EXPECT_EQ(evidence, "11 of 12 links active, fewer than before the run");
  Json ranks = launch();
  ranks[3]["before"]["nvlinks_active"] = ranks[3]["after"]["nvlinks_active"] = 10;
  EXPECT_EQ(found(ranks, &evidence), "WARN inactive NVLink 3");
  EXPECT_EQ(evidence, "10 of 12 links active, fewer than on another GPU");
}

TEST(FailingGpus, ALostGpu) {
  Json ranks = launch();
  ranks[0]["after"] = {{"driver", "570.86"}, {"unreachable", "the GPU is lost"}};
  EXPECT_EQ(found(ranks), "CRITICAL lost GPU 0");
}

TEST(FailingGpus, RanksOfOneGpuAreOneFinding) {
  Json ranks = launch();
  for (const char* when : {"before", "after"}) ranks[3][when]["uuid"] = "GPU-2";
  for (const int rank : {2, 3}) ranks[rank]["after"]["pcie_lanes"] = 4;
  EXPECT_EQ(found(ranks), "WARN narrow PCIe 2 3");
}

TEST(FailingGpus, AbsentFactsAreNoFinding) {
  Json ranks = launch();
  ranks[2]["before"] = Json::object();
  ranks[2]["after"]["thermal_slowdown_ns"] = 90'000'000'000;
  EXPECT_EQ(found(ranks), "");
  ranks[2]["after"] = Json::object();
  EXPECT_EQ(found(ranks), "");
  EXPECT_EQ(found(Json::array({{{"rank", 0}}})), "");
}

}  // namespace
}  // namespace harness
