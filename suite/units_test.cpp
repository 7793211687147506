// Every unit on ranks that are threads: the same code that processes run, here where sanitizers see
// all of it. Times mean nothing here; what is judged must hold.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness/run.h"
#include "harness/unit.h"
#include "layers/gpt_cost.h"
#include "machine/world/world.h"
#include "suite/training_step/file_case.h"
#include "suite/training_step/text_tokens.h"
#include "suite/training_step/trainer.h"
#include "zero/io_ring.h"

namespace suite {
namespace {

// Sanitizers slow the code down tenfold: there, fewer ways to cut the same work.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

class Records final : public harness::Sink, public harness::Progress {
 public:
  void add(const harness::Record& record) override { records.push_back(record); }
  void finish(const harness::RunContext&) override {}
  void start(std::size_t) override {}
  void case_started(const std::string&) override {}
  void case_done(const harness::Record&) override {}
  void finish(const harness::RunContext&, const std::vector<harness::Record>&) override {}
  std::vector<harness::Record> records;
};

std::vector<harness::Record> run(const std::vector<harness::PlannedCase>& cases, int ranks,
                                 double seconds = 0.02, const harness::RunOptions& given = {}) {
  Records records;
  machine::run_ranks(ranks, [&](machine::World& world) {
    harness::RunOptions options = given;
    options.max_seconds_per_case = seconds;
    options.measure_rates = false;
    options.sink = world.rank() == 0 ? &records : nullptr;
    harness::run(world, cases, options, records);
  });
  return records.records;
}

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
  const bool is_step = is_llama || GetParam() == "gpt_step" || GetParam() == "training_speed";
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
    if (axis.name == "elements") flags["elements"] = "10007";
    if (axis.name == "optimizer") flags["ranks"] = sanitized ? "1" : "2";
    if (axis.name == "hidden") flags["hidden"] = "64";
    if (axis.name == "ranks" && GetParam() == "error_feedback") flags["ranks"] = "1,3";
    if (axis.name == "micro_batches") flags["micro_batches"] = "4";
    if (!is_step) {  // gpt_step has a test of its own for these
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
  std::vector<harness::PlannedCase> cases =
      harness::plan_cases({GetParam()}, harness::Profile::acceptance, flags);
  if (GetParam() == "gpt_step")  // every way to cut it; both schedules and both stages at 8 ranks
    std::erase_if(cases, [](const harness::PlannedCase& planned) {
      const auto has = [&](const char* word) {
        return planned.name.find(word) != std::string::npos;
      };
      const bool usual = has("schedule:1f1b") && has("zero-stage:1");
      const bool all_three = has("tensor-model-parallel-size:2") &&
                             has("pipeline-model-parallel-size:2") && has("data-parallel-size:2");
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
      if (compressed) continue;  // some send how much they are to send
      EXPECT_EQ(record.counters.at("wire_bytes_measured"), 0) << record.name;
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

std::string refusal(const std::string& unit, const harness::AxisFlags& flags) {
  try {
    harness::plan_cases({unit}, harness::Profile::quick, flags);
  } catch (const harness::UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Units, RefuseAnInnerThatNamesNoRows) {
  EXPECT_EQ(refusal("all_reduce", {{"inner", "3"}, {"ranks", "8"}, {"algorithm", "mesh"}}),
            "algorithm mesh: inner 3 does not divide 8 ranks (unit all_reduce)");
  EXPECT_EQ(refusal("all_reduce", {{"inner", "2"}, {"algorithm", "ring"}}),
            "algorithm ring: algorithm ring does not ask which ranks are near (unit all_reduce)");
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

TEST(Units, AGptStepHoldsActivationsInEveryWay) {
  const bool few = sanitized;
  const auto cases = harness::plan_cases({"gpt_step"}, harness::Profile::quick,
                                         {{"model", "tiny"},
                                          {"dtype", "float"},
                                          {"transport", "shared_memory"},
                                          {"schedule", "1f1b"},
                                          {"zero-stage", "1"},
                                          {"ranks", "4"},
                                          {"tensor-model-parallel-size", few ? "2" : "2,4"},
                                          {"pipeline-model-parallel-size", few ? "2" : "1,2"},
                                          {"data-parallel-size", "1"},
                                          {"sequence-parallel", "0,1"},
                                          {"recompute-granularity", "selective,full"},
                                          {"recompute-method", few ? "uniform" : "uniform,block"},
                                          {"distribute-saved-activations", "0,1"}});
  EXPECT_EQ(cases.size(), few ? 5U : 16U);
  for (const harness::Record& record : run(cases, 4, 0.001))
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
}

TEST(Units, AGptStepAttendsBlockwise) {
  const auto cases =
      harness::plan_cases({"gpt_step"}, harness::Profile::quick,
                          {{"model", "tiny"},
                           {"dtype", "float"},
                           {"transport", "shared_memory"},
                           {"schedule", "1f1b"},
                           {"zero-stage", "1"},
                           {"ranks", "2"},
                           {"tensor-model-parallel-size", "2"},
                           {"pipeline-model-parallel-size", "1"},
                           {"data-parallel-size", "1"},
                           {"sequence-parallel", sanitized ? "0" : "0,1"},
                           {"recompute-granularity", sanitized ? "none" : "none,full"},
                           {"use-flash-attn", "1"}});
  EXPECT_EQ(cases.size(), sanitized ? 1U : 4U);
  for (const harness::Record& record : run(cases, 2, 0.001))
    EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
}

// Four query groups over tp 4: a rank has one head of keys. Dropout falls on the same elements
// however the step is cut, or the numbers would not be those of degree 1.
TEST(Units, AGptStepHasTheShapeItsModelArgumentsSay) {
  for (const auto& [model, args] :
       {std::pair("llama_tiny", "none"),
        {"tiny", "--hidden-dropout 0.1 --swiglu --normalization=RMSNorm"}}) {
    if (sanitized && args == std::string("none")) continue;
    const auto cases =
        harness::plan_cases({"gpt_step"}, harness::Profile::quick,
                            {{"model", model},
                             {"model-args", args},
                             {"dtype", "float"},
                             {"transport", "shared_memory"},
                             {"schedule", "1f1b"},
                             {"zero-stage", "1"},
                             {"ranks", "4"},
                             {"tensor-model-parallel-size", sanitized ? "2" : "2,4"},
                             {"pipeline-model-parallel-size", sanitized ? "2" : "1,2"},
                             {"data-parallel-size", "1"},
                             {"sequence-parallel", sanitized ? "1" : "0,1"},
                             {"recompute-granularity", "full"}});
    EXPECT_EQ(cases.size(), sanitized ? 1U : 4U);
    for (const harness::Record& record : run(cases, 4, 0.001))
      EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.name << ": " << record.reason;
  }
}

TEST(Units, ModelArgumentsAreRefusedByName) {
  const auto refused = [](const std::string& args) {
    return refusal("gpt_step", {{"model", "tiny"}, {"model-args", args}, {"ranks", "1"}});
  };
  EXPECT_EQ(refused("--swiglu"), "accepted");
  EXPECT_NE(refused("--swigul").find("did you mean 'swiglu'"), std::string::npos)
      << refused("--swigul");
  EXPECT_NE(refused("--rotary-base").find("rotary-base lacks its value"), std::string::npos);
  EXPECT_NE(refused("--hidden-dropout many").find("hidden-dropout 'many' is no number"),
            std::string::npos);
  EXPECT_NE(refused("--num-query-groups 2").find("group-query-attention"), std::string::npos);
  EXPECT_NE(refused("--attention-dropout 0.1").find("the one value that fits is 0"),
            std::string::npos);
  EXPECT_NE(refused("--normalization RMSnorm").find("RMSNorm"), std::string::npos);
}

TEST(Units, OnlyGptTwosShapeIsLoaded) {
  harness::RunOptions options;
  options.save_file = "nowhere";
  const auto cases = harness::plan_cases({"llama_step"}, harness::Profile::quick,
                                         {{"ranks", "1"},
                                          {"dtype", "float"},
                                          {"tensor-model-parallel-size", "1"},
                                          {"pipeline-model-parallel-size", "1"},
                                          {"data-parallel-size", "1"}});
  ASSERT_EQ(cases.size(), 1U);
  const harness::Record record = run(cases, 1, 0.001, options).at(0);
  EXPECT_EQ(record.verdict, harness::Ruling::fail);
  EXPECT_NE(record.reason.find("normalization is LayerNorm, but the model's is RMSNorm"),
            std::string::npos)
      << record.reason;
}

TEST(Units, LlamaTwoHasItsShape) {
  TrainingConfig config;
  set_model(config, "llama2_7b", "model");
  EXPECT_EQ(layers::parameters_count(config.model), 6'738'415'616);  // Touvron et al. 2023
}

#ifndef __SANITIZE_THREAD__  // slow there, and files are no matter of threads
TEST(Units, AGptStepStartsFromTheFilesItIsGiven) {
  const testing::Folder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::to_string(i * i) + (i % 7 == 0 ? "\n\n" : " ");
  testing::write_bytes(folder.path("text"), text);
  write_text_tokens(folder.path("text"), folder.path("pair"));
  const auto step = [](const std::string& tp, const harness::RunOptions& options) {
    const auto cases = harness::plan_cases({"gpt_step"}, harness::Profile::quick,
                                           {{"model", "tiny"},
                                            {"dtype", "float"},
                                            {"transport", "shared_memory"},
                                            {"schedule", "1f1b"},
                                            {"zero-stage", "1"},
                                            {"tensor-model-parallel-size", tp},
                                            {"pipeline-model-parallel-size", "1"},
                                            {"data-parallel-size", "1"},
                                            {"ranks", tp}});
    return run(cases, std::stoi(tp), 0.02, options).at(0);
  };
  harness::RunOptions options;
  options.data_file = folder.path("text");
  options.save_file = folder.path("weights");
  const harness::Record first = step("1", options);
  ASSERT_EQ(first.verdict, harness::Ruling::pass) << first.reason;
  EXPECT_GT(first.counters.at("loss_error"), 0);
  EXPECT_LT(first.counters.at("loss_error"), 1e-5);
  options.data_file = folder.path("pair");
  options.load_file = folder.path("weights");
  options.save_file.clear();
  const harness::Record second = step("2", options);
  ASSERT_EQ(second.verdict, harness::Ruling::pass) << second.reason;
  EXPECT_LT(second.losses.at(0), first.losses.at(9)) << "trained for ten steps, it goes on";
  options.data_file = folder.path("missing");
  const harness::Record third = step("2", options);
  EXPECT_EQ(third.verdict, harness::Ruling::fail);
  EXPECT_NE(third.reason.find("missing"), std::string::npos) << third.reason;
}
#endif

TEST(Units, GptTwoHasItsShapeAndAPaddedTable) {
  TrainingConfig config;
  set_model(config, "gpt2_124m", "256");
  EXPECT_EQ(config.vocabulary, 50257);
  EXPECT_EQ(config.model.vocabulary, 50304);
  EXPECT_EQ(config.model.sequence, 256);
  // Radford et al. 2019 have 124,439,808 with 1024 positions; 47 rows are padding.
  set_model(config, "gpt2_124m", "model");
  EXPECT_EQ(layers::parameters_count(config.model), 124'439'808 + 47 * 768);
  set_model(config, "gpt2_1558m", "model");
  EXPECT_EQ(layers::parameters_count(config.model), 1'557'611'200 + 47 * 1600);
  EXPECT_EQ(padded_vocabulary(50257, 2), 50432);
  EXPECT_EQ(padded_vocabulary(50257, 4), 50688);
  EXPECT_EQ(padded_vocabulary(256, 4), 256);
  for (const char* length : {"0", "-1", "12x", "", "99999999999"})
    EXPECT_THROW(set_model(config, "gpt2_124m", length), std::invalid_argument) << length;
}

TEST(Units, ATrainingStepIsTimedBesideItsProducts) {
  const auto cases = harness::plan_cases(
      {"training_speed"}, harness::Profile::quick,
      {{"model", "tiny"}, {"ranks", "1"}, {"dtype", "float"}, {"seq-length", "16"}});
  ASSERT_EQ(cases.size(), 1U);
  const harness::Record record = run(cases, 1).at(0);
  ASSERT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
  EXPECT_GT(record.counters.at("gemm_fraction"), 0);
  EXPECT_GT(record.counters.at("tokens_per_second"), 0);
  EXPECT_FALSE(record.counters.contains("speedup_over_library"));
  // Of n = 64 tokens: h = 32, two layers of 12 h² and of attention's n * s * h twice, in whole
  // squares; three times each, and 2 operations a term.
  const double n = 64, s = 16, h = 32;
  EXPECT_EQ(record.counters.at("gemm_flops"), 3 * 2 * n * (2 * (12 * h * h + 2 * s * h) + 256 * h));
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
                             "error_feedback",
                             "gather",
                             "gemm",
                             "gpt_step",
                             "layer_norm",
                             "link_matrix",
                             "llama_step",
                             "loss_scaler",
                             "memory_bandwidth",
                             "mlp",
                             "nvme_bandwidth",
                             "optimizer_step",
                             "pipeline_step",
                             "reduce",
                             "reduce_scatter",
                             "rms_norm",
                             "row_parallel_linear",
                             "scatter",
                             "self_attention",
                             "send_receive",
                             "training_speed",
                             "transformer_block",
                             "vocabulary_parallel_cross_entropy",
                             "vocabulary_parallel_embedding",
                             "zero_step"})
    EXPECT_NE(std::find(names.begin(), names.end(), wanted), names.end()) << wanted;
}

}  // namespace
}  // namespace suite
