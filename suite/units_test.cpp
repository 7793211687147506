// Every unit on ranks that are threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "suite/testing/on_threads.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

using on_threads::refusal;
using on_threads::run;
using on_threads::sanitized;

std::vector<std::string> unit_names() {
  std::vector<std::string> names;
  for (const harness::Family* family : harness::families()) names.emplace_back(family->name());
  return names;
}

class EveryUnit : public ::testing::TestWithParam<std::string> {};

// Of the profile `acceptance`, whose products are the full ones, every case of few bytes: all
// algorithms, dtypes and rank counts over shared memory.
TEST_P(EveryUnit, PassesItsOraclesOnThreads) {
  harness::AxisFlags flags;
  const auto axes = [&] {
    for (const harness::Family* family : harness::families())
      if (family->name() == GetParam()) return family->axes(harness::Profile::acceptance);
    return std::vector<harness::AxisInfo>{};
  }();
  const bool has_algorithms = std::ranges::any_of(
      axes, [](const harness::AxisInfo& axis) { return axis.name == "algorithm"; });
  const bool is_llama = GetParam() == "llama_step";
  const bool is_grid = GetParam() == "gpt_grid";
  const bool is_step =
      is_llama || is_grid || GetParam() == "gpt_step" || GetParam() == "training_speed";
  for (const harness::AxisInfo& axis : axes) {
    if (axis.name == "transport") flags["transport"] = "shared_memory";
    if (axis.name == "bytes")
      flags["bytes"] =
          GetParam() == "memory_bandwidth" || GetParam() == "nvme_bandwidth" ? "32KiB" : "8,20000";
    if (axis.name == "model") flags["model"] = is_llama ? "llama_tiny" : "tiny";
    if (is_llama && axis.name == "ranks") flags["ranks"] = "4";
    if (is_llama && axis.name == "dtype") flags["dtype"] = "bfloat16";  // float has a test below
    if (axis.name == "seq-length") flags["seq-length"] = "model";
    if (axis.name == "shape") flags["shape"] = "65x33x129";
    if (axis.name == "extent") flags["extent"] = "65";
    if (axis.name == "parameters") flags["parameters"] = "10007";
    if (axis.name == "ranks" && GetParam() == "zero_step") {
      flags["ranks"] = "1,3,8";
      flags["dtype"] = "float,bfloat16";
    }
    if (axis.name == "computation_ms") {
      flags[axis.name] = "4";
      flags["gradient_accumulation_steps"] = "1";
      flags["ranks"] = "2";
    }
    if (axis.name == "elements") flags["elements"] = "10007";
    if (axis.name == "layers") flags["layers"] = "3";
    if (axis.name == "optimizer") flags["ranks"] = sanitized ? "1" : "2";
    if (axis.name == "hidden") flags["hidden"] = "64";
    if (axis.name == "ranks" && GetParam() == "error_feedback") flags["ranks"] = "1,3";
    if (axis.name == "micro_batches") flags["micro_batches"] = "4";
    if (axis.name == "micro_batch_us") flags["micro_batch_us"] = "300";
    if (axis.name == "virtual_stages") flags["virtual_stages"] = "1,2";
    if (axis.name == "dtype" && GetParam() == "pipeline_step")
      flags["dtype"] = "bfloat16";  // float has a test below
    if (!is_step) {                 // gpt_step has a test of its own for these
      if (axis.name == "sequence-parallel") flags[axis.name] = "0,1";
      if (axis.name == "recompute-granularity") flags[axis.name] = "none,selective";
    }
    if (axis.name == "seq-length" &&
        !is_step) {  // a layer: rows that three divides; four have the next test
      flags["seq-length"] = "24";
      flags["ranks"] = sanitized ? "3" : "2,3,8";
      flags["dtype"] = "bfloat16";
    }
    if (axis.name == "pipeline-model-parallel-size" && GetParam() == "gpt_step")
      flags[axis.name] = "1,2";
    if (axis.name == "dtype" && has_algorithms) flags["dtype"] = "float,bfloat16";
    if (axis.name == "reduction") flags["reduction"] = "sum";
    if (sanitized && axis.name == "ranks" && !is_step) flags["ranks"] = "1,3";
    if (sanitized && axis.name == "tokens") flags["tokens"] = "16";
    if (sanitized && axis.name == "global-batch-size") flags[axis.name] = "8";
  }
  if (is_grid)  // two chunks of a stage in each of their three orders; all have a test of gpt_step
    flags = {{"model-args", "--num-layers 4"},
             {"schedule", "interleaved_1f1b,zb_v,dual_pipe"},
             {"zero-stage", "1"},
             {"ranks", "2"},
             {"tensor-model-parallel-size", "1"},
             {"pipeline-model-parallel-size", "2"},
             {"data-parallel-size", "1"},
             {"dtype", "bfloat16"}};
  std::vector<harness::PlannedCase> cases =
      harness::plan_cases({GetParam()}, harness::Profile::acceptance, flags);
  // Every way to cut it; at 8 ranks both schedules, stages 0 and 1, and over dp 4 stages 2 and 3.
  if (GetParam() == "gpt_step")
    std::erase_if(cases, [](const harness::PlannedCase& planned) {
      const auto has = [&](const char* word) {
        return planned.name.find(word) != std::string::npos;
      };
      const bool usual = has("schedule:1f1b") && has("zero-stage:1");
      const bool all_three = has("tensor-model-parallel-size:2") &&
                             has("pipeline-model-parallel-size:2") && has("data-parallel-size:2");
      const bool in_parts = has("zero-stage:2") || has("zero-stage:3");
      if (in_parts && !has("data-parallel-size:4")) return true;
      return sanitized ? !(usual && all_three) : !usual && planned.ranks != 8;
    });
  int passed = 0;
  for (const harness::Record& record : run(cases, 8)) {
    EXPECT_NE(record.verdict, harness::Ruling::fail) << record.name << ": " << record.reason;
    if (record.verdict == harness::Ruling::skipped)
      EXPECT_FALSE(record.reason.empty()) << record.name;
    else
      ++passed;
  }
  // Containers that forbid io_uring are usual.
  const bool forbidden = GetParam() == "nvme_bandwidth" && !zero::IoRing::why_not().empty();
  EXPECT_GT(passed, forbidden ? -1 : 0);
}

TEST(Units, EveryDtypeAndReductionByEveryAlgorithm) {
  for (const char* unit : {"all_reduce", "reduce_scatter", "reduce", "all_gather"}) {
    harness::AxisFlags flags = {{"transport", "shared_memory"}, {"ranks", "3"}, {"bytes", "1000"}};
    if (sanitized) flags["algorithm"] = "ring,direct";
    if (unit == std::string("reduce")) flags["algorithm"] = "ring,direct,binomial_tree";
    const auto cases = harness::plan_cases({unit}, harness::Profile::acceptance, flags);
    for (const harness::Record& record : run(cases, 3))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
  }
}

// Where schedules change their shape: one micro-batch, one less than there are stages, as many,
// twice as many and some more.
TEST(Units, PipelineSchedulesAtTheirEdges) {
  auto cases = harness::plan_cases({"pipeline_step"}, harness::Profile::acceptance,
                                   {{"ranks", sanitized ? "4" : "3,4,8"},
                                    {"micro_batches", "1,2,3,4,6,7,8,9,16,17,18"},
                                    {"dtype", "float"},
                                    {"transport", "shared_memory"},
                                    {"tokens", "8"},
                                    {"hidden", "16"}});
  std::erase_if(cases, [](const harness::PlannedCase& planned) {
    int m = 0;
    for (const auto& [axis, value] : planned.axes)
      if (axis == "micro_batches") m = std::stoi(value);
    const int p = planned.ranks;
    return m != 1 && m != p - 1 && m != p && m != 2 * p && m != 2 * p + 1 && m != 2 * p + 2;
  });
  std::set<std::string> schedules;
  for (const harness::Record& record : run(cases, 8, 0.001)) {
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
    schedules.insert(record.axes.front().second);
  }
  EXPECT_EQ(schedules.size(), 7u);
  EXPECT_EQ(refusal("pipeline_step", {{"schedule", "interleaved_1f1b"},
                                      {"virtual_stages", "2"},
                                      {"ranks", "4"},
                                      {"micro_batches", "6"}}),
            "schedule interleaved_1f1b with 4 stages, 6 micro-batches and 2 chunks a "
            "stage: needs m % p == 0 (unit pipeline_step)");
}

// Buckets of a few parameters, several micro-batches, on a thread of its own; then all else that
// stages 2 and 3 can do differently.
TEST(Units, AZeroStepInBucketsAndMicroBatches) {
  harness::AxisFlags flags = {{"transport", "shared_memory"},
                              {"ranks", "3"},
                              {"dtype", "bfloat16"},
                              {"parameters", "10007"},
                              {"reduce_bucket_size", "1500"},
                              {"gradient_accumulation_steps", "1,3"},
                              {"overlap_comm", sanitized ? "on" : "off,on"}};
  auto cases = harness::plan_cases({"zero_step"}, harness::Profile::acceptance, flags);
  flags["contiguous_gradients"] = "off";
  flags["allgather_bucket_size"] = "500";
  flags["communication_data_type"] = "half";
  flags["stage3_prefetch_bucket_size"] = "3000";
  flags["stage3_max_live_parameters"] = "5000";
  flags["stage3_param_persistence_threshold"] = "0,1000";
  for (auto& planned : harness::plan_cases({"zero_step"}, harness::Profile::acceptance, flags))
    cases.push_back(std::move(planned));
  for (const harness::Record& record : run(cases, 3, 0.001))
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
}

// At every stage, over ranks that are no power of two, with gradients narrower than their master.
TEST(Units, AZeroStepWithItsStatesElsewhere) {
  const harness::AxisFlags usual = {{"transport", "shared_memory"},
                                    {"ranks", "3"},
                                    {"dtype", "half"},
                                    {"parameters", "3001"},
                                    {"reduce_bucket_size", "700"},
                                    {"sub_group_size", "100"},
                                    {"buffer_count", "3"}};
  harness::AxisFlags cpu = usual, late = usual, nvme = usual;
  cpu["offload_optimizer"] = late["offload_optimizer"] = "cpu";
  cpu["ratio"] = "0.5,1";
  late["delayed_update"] = "on";
  nvme["offload_optimizer"] = "nvme";
  nvme["gradient_accumulation_steps"] = "3";
  nvme["overlap_comm"] = "on";
  std::vector<harness::PlannedCase> cases;
  harness::AxisFlags values = usual;
  values["offload_param"] = "cpu,nvme";
  values["offload_optimizer"] = "none,nvme";
  values["max_in_cpu"] = "300";
  for (const harness::AxisFlags& flags : {cpu, late, nvme, values})
    for (auto& planned : harness::plan_cases({"zero_step"}, harness::Profile::acceptance, flags))
      cases.push_back(std::move(planned));
  EXPECT_EQ(cases.size(), 20u);  // values in stage 3 alone
  for (const harness::Record& record : run(cases, 3, 0.001))
    EXPECT_NE(record.verdict, harness::Ruling::fail) << record.name << ": " << record.reason;
}

// Zero elements: messages as the formula says, of no bytes.
TEST(Units, ACallOfNothingIsJudgedToo) {
  for (const char* unit :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
        "all_to_all", "all_to_all_v", "send_receive", "compressed_all_reduce"}) {
    harness::AxisFlags flags = {{"ranks", "1,3"}, {"bytes", "0"}, {"transport", "shared_memory"}};
    const bool compressed = unit == std::string("compressed_all_reduce");
    if (!compressed) flags["dtype"] = "float,int8";
    if (!compressed && std::string(unit).find("reduce") != std::string::npos)
      flags["reduction"] = "avg";
    const auto cases = harness::plan_cases({unit}, harness::Profile::acceptance, flags);
    EXPECT_GT(cases.size(), 1U) << unit;
    for (const harness::Record& record : run(cases, 3, 0.001)) {
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
      EXPECT_EQ(record.counters.at("wire_bytes_measured"), 0) << record.name;
      if (compressed) continue;  // which sends no message that has no element
      const bool several = record.name.find("ranks:3") != std::string::npos;
      EXPECT_EQ(record.counters.at("messages_measured") > 0, several) << record.name;
    }
  }
}

TEST(Units, EveryInnerIsJudged) {
  for (const auto& [ranks, divisors] : std::vector<std::pair<int, std::string>>{
           {4, "1,2,4"}, {6, "1,2,3,6"}, {8, "1,2,4,8"}, {12, "1,2,3,4,6,12"}}) {
    if (sanitized && ranks > 4) continue;
    for (const char* unit : {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}) {
      const bool rows = unit != std::string("broadcast");
      const harness::AxisFlags flags = {{"transport", "shared_memory"},
                                        {"ranks", std::to_string(ranks)},
                                        {"bytes", "4036"},
                                        {"dtype", "float"},
                                        {"algorithm", rows ? "hierarchical,mesh" : "hierarchical"},
                                        {"inner", divisors}};
      const auto cases = harness::plan_cases({unit}, harness::Profile::quick, flags);
      EXPECT_EQ(cases.size(),
                (rows ? 2U : 1U) * static_cast<std::size_t>(std::ranges::count(divisors, ',') + 1));
      for (const harness::Record& record : run(cases, ranks, 0.001))
        EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
    }
  }
}

TEST(Units, RefuseAnInnerThatNamesNoRows) {
  EXPECT_EQ(refusal("all_reduce", {{"inner", "3"}, {"ranks", "8"}, {"algorithm", "mesh"}}),
            "inner 3 does not divide 8 ranks (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "2"}, {"algorithm", "ring"}}),
            "algorithm ring does not ask which ranks are near (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "two"}}),
            "inner two: 'two' is neither a number of ranks nor auto (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "1,2"}, {"ranks", "4"}}), "accepted");
}

// On the host the transports between devices are refused one by one, and none is swept by itself.
TEST(Units, SkipTransportsBetweenDevicesOnTheHost) {
  for (const char* transport : {"cuda_ipc", "nccl"}) {
    const harness::AxisFlags flags = {{"transport", transport}, {"ranks", "2"}};
    std::size_t skipped = 0;
    const auto cases =
        harness::plan_cases({"all_reduce", "barrier"}, harness::Profile::quick, flags);
    for (const harness::Record& record : run(cases, 2)) {
      EXPECT_EQ(record.verdict, harness::Ruling::skipped) << record.name;
      EXPECT_EQ(record.reason, std::string("rank 0: transport ") + transport +
                                   " moves tensors of CUDA devices: needs --device cuda");
      ++skipped;
    }
    EXPECT_EQ(skipped, cases.size());
  }
  const auto transports = [](machine::Device::Kind device) {
    harness::planned_device = device;
    std::set<std::string> found;
    for (const auto& planned : harness::plan_cases({"all_reduce"}, harness::Profile::quick, {}))
      for (const auto& [axis, value] : planned.axes)
        if (axis == "transport") found.insert(value);
    harness::planned_device = machine::Device::Kind::host;
    return found;
  };
  EXPECT_EQ(transports(machine::Device::Kind::host),
            (std::set<std::string>{"mpi", "shared_memory"}));
  const std::set<std::string> on_gpus = transports(machine::Device::Kind::cuda);
  EXPECT_TRUE(on_gpus.contains("cuda_ipc"));
  EXPECT_EQ(on_gpus.contains("nccl"), machine::cuda::count() > 1);
  EXPECT_FALSE(on_gpus.contains("shared_memory"));
}

// Tokens cut between the tensor-parallel regions, layers made again: everything else as before.
// The rows of a rank begin and end within a sequence.
TEST(Units, LayersInEveryDtypeOfUnevenRows) {
  for (const char* unit :
       {"mlp", "self_attention", "layer_norm", "rms_norm", "vocabulary_parallel_embedding",
        "vocabulary_parallel_cross_entropy", "transformer_block"}) {
    const bool norm = std::string(unit).ends_with("norm");
    harness::AxisFlags flags = {{"transport", "shared_memory"},
                                {"ranks", "4"},
                                {"dtype", sanitized ? "half" : "half,double"},
                                {"sequence-parallel", "0,1"},
                                {"seq-length", "10"},
                                {"micro-batch-size", "2"}};
    if (!norm) flags["architecture"] = sanitized ? "llama" : "gpt2,llama";
    const auto cases = harness::plan_cases({unit}, harness::Profile::acceptance, flags);
    EXPECT_EQ(cases.size(), sanitized ? 2U : norm ? 4U : 8U) << unit;
    for (const harness::Record& record : run(cases, 4, 0.001))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
  }
}

INSTANTIATE_TEST_SUITE_P(Suite, EveryUnit, ::testing::ValuesIn(unit_names()),
                         [](const auto& info) { return info.param; });

TEST(Units, CoverEveryRoomThatIsJudged) {
  const std::vector<std::string> names = unit_names();
  for (const char* wanted : {"all_gather",
                             "all_reduce",
                             "all_to_all",
                             "all_to_all_v",
                             "barrier",
                             "broadcast",
                             "column_parallel_linear",
                             "compressed_all_reduce",
                             "constant_buffers",
                             "error_feedback",
                             "gather",
                             "gemm",
                             "gpt_step",
                             "layer_norm",
                             "link_matrix",
                             "llama_step",
                             "loss_scaler",
                             "memory_arena",
                             "memory_bandwidth",
                             "mlp",
                             "nvme_bandwidth",
                             "offload_step",
                             "optimizer_step",
                             "pipeline_bubble",
                             "pipeline_step",
                             "reduce",
                             "reduce_scatter",
                             "rms_norm",
                             "row_parallel_linear",
                             "scatter",
                             "self_attention",
                             "send_receive",
                             "step_parts",
                             "training_speed",
                             "transformer_block",
                             "vocabulary_parallel_cross_entropy",
                             "vocabulary_parallel_embedding",
                             "zero_options",
                             "zero_overlap",
                             "zero_step"})
    EXPECT_NE(std::find(names.begin(), names.end(), wanted), names.end()) << wanted;
}

}  // namespace
}  // namespace suite
