// The training step in units: its options, shapes and input files.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "layers/models/gpt_cost.h"
#include "machine/world/step_clock.h"
#include "suite/configuration/models.h"
#include "suite/files/indexed_tokens.h"
#include "suite/testing/file_case.h"
#include "suite/testing/on_threads.h"
#include "suite/testing/small_steps.h"
#include "suite/trainer/tokens/step_tokens.h"
#include "suite/trainer/trainer.h"
#include "zero/offload/io_ring.h"

namespace suite {
namespace {

using on_threads::refusal;
using on_threads::run;
using on_threads::sanitized;
using small_steps::expect_passed;
using small_steps::steps;

TEST(TrainingStep, AGptStepSupportsEveryActivationOption) {
  const bool few = sanitized;
  const auto cases = steps({{"ranks", "4"},
                            {"tensor-model-parallel-size", few ? "2" : "2,4"},
                            {"pipeline-model-parallel-size", few ? "2" : "1,2"},
                            {"sequence-parallel", "0,1"},
                            {"recompute-granularity", "selective,full"},
                            {"recompute-method", few ? "uniform" : "uniform,block"},
                            {"distribute-saved-activations", "0,1"},
                            {"contiguous-checkpoints", "0"},
                            {"number-checkpoints", "0"}});
  EXPECT_EQ(cases.size(), few ? 5U : 16U);
  expect_passed(cases, 4);
}

// Whole and distributed checkpoints, of all layers and of some layers, apart and in one allocation.
// On one stage, the caller keeps the first input.
TEST(TrainingStep, AGptStepKeepsItsCheckpointsOnTheHost) {
  const auto cases = steps({{"ranks", "4"},
                            {"tensor-model-parallel-size", sanitized ? "2" : "2,4"},
                            {"pipeline-model-parallel-size", sanitized ? "2" : "1,2"},
                            {"recompute-granularity", "full"},
                            {"recompute-method", sanitized ? "uniform" : "uniform,block"},
                            {"distribute-saved-activations", sanitized ? "1" : "0,1"},
                            {"cpu-checkpointing", "1"},
                            {"contiguous-checkpoints", sanitized ? "1" : "0,1"},
                            {"number-checkpoints", "0"}});
  EXPECT_EQ(cases.size(), sanitized ? 1U : 16U);
  expect_passed(cases, 4);
  testing::expect_words(refusal("gpt_step", {{"model", "tiny"},
                                             {"ranks", "1"},
                                             {"tensor-model-parallel-size", "1"},
                                             {"recompute-granularity", "selective"},
                                             {"cpu-checkpointing", "1"}}),
                        {"cpu-checkpointing requires recompute-granularity full (got selective)"});
  const auto adjacent = [](const std::string& on_host, const std::string& room) {
    return refusal("gpt_step", {{"model", "tiny"},
                                {"ranks", "1"},
                                {"recompute-granularity", "full"},
                                {"cpu-checkpointing", on_host},
                                {"contiguous-checkpoints", "1"},
                                {"number-checkpoints", room}});
  };
  testing::expect_words(adjacent("0", "0"), {"contiguous-checkpoints", "cpu-checkpointing"});
  testing::expect_words(adjacent("1", "1"), {"number-checkpoints is 1; expected at least 2"});
}

TEST(TrainingStep, RejectsChunksThatFpdtDoesNotSupport) {
  const auto chunked = [](const std::string& type, const std::string& size) {
    return refusal("gpt_step", {{"model", "tiny"},
                                {"ranks", "2"},
                                {"context-parallel-size", "2"},
                                {"use-flash-attn", "1"},
                                {"cp-comm-type", type},
                                {"cp-placement", "striped"},
                                {"ds-sequence-parallel-fpdt", "1"},
                                {"ds-sequence-parallel-fpdt-chunk-size", size}});
  };
  testing::expect_words(chunked("p2p", "12"), {"ds-sequence-parallel-fpdt requires", "got p2p"});
  testing::expect_words(chunked("a2a", "11"), {"ds-sequence-parallel-fpdt-chunk-size is 11",
                                               "context-parallel-size 2 (example: 12)"});
  testing::expect_words(
      refusal("gpt_step", {{"model", "tiny"}, {"ranks", "1"}, {"ds-sequence-parallel-fpdt", "1"}}),
      {"ds-sequence-parallel-fpdt requires context-parallel-size 2 or more (got 1)"});
}

TEST(TrainingStep, AGptStepUsesBlockwiseAttention) {
  const auto cases = steps({{"ranks", "2"},
                            {"tensor-model-parallel-size", "2"},
                            {"sequence-parallel", sanitized ? "0" : "0,1"},
                            {"recompute-granularity", sanitized ? "none" : "none,full"},
                            {"use-flash-attn", "1"}});
  EXPECT_EQ(cases.size(), sanitized ? 1U : 4U);
  expect_passed(cases, 2);
}

// The oracle of volume expects the bytes of the selected algorithms, which differ from those of the
// default. The list of dp has two texts.
TEST(TrainingStep, AGptStepRunsTheSelectedAlgorithms) {
  const auto cases = steps(
      {{"ranks", "4"},
       {"tensor-model-parallel-size", "1,4"},
       {"data-parallel-size", "1,4"},
       {"zero-stage", sanitized ? "1" : "0,1"},
       {"tp-algorithm", "recursive_doubling"},
       {"dp-algorithm", "all_reduce=recursive_doubling,reduce_scatter=recursive_halving,ours"}});
  EXPECT_EQ(cases.size(), sanitized ? 4U : 8U);
  expect_passed(cases, 4);
  const auto refused = [](const std::string& flag, const std::string& value) {
    return refusal("gpt_step", {{"model", "tiny"}, {"transport", "shared_memory"}, {flag, value}});
  };
  testing::expect_words(refused("tp-algorithm", "libary"), {"tp-algorithm", "'library'"});
  testing::expect_words(refused("embedding-algorithm", "library"),
                        {"embedding-algorithm library requires transport mpi or nccl"});
}

TEST(TrainingStep, AGptStepInHalfScalesItsLoss) {
  const auto cases =
      steps({{"ranks", "2"}, {"tensor-model-parallel-size", "2"}, {"dtype", "half"}});
  EXPECT_EQ(cases.size(), 1U);
  expect_passed(cases, 2);
}

// In the first step, only the first half of the sequences counts. With dp 2, one rank has no
// counted tokens.
TEST(TrainingStep, AGptStepSupportsUnevenTokens) {
  for (int sequences : {1, 2, 7, 8})
    for (std::int64_t step = 0; step < 8; ++step) {
      int all = 0;
      for (int i = 0; i < sequences; ++i) {
        const int counted = counted_tokens(3, step, i, sequences, 32);
        EXPECT_TRUE(0 <= counted && counted <= 32);
        if (step % 4 == 0 && i >= (sequences + 1) / 2) {
          EXPECT_EQ(counted, 0);
        }
        all += counted;
      }
      EXPECT_GT(all, 0);
    }
  const auto cases = steps({{"ranks", "4"},
                            {"tensor-model-parallel-size", "2"},
                            {"pipeline-model-parallel-size", sanitized ? "1" : "1,2"},
                            {"data-parallel-size", sanitized ? "2" : "1,2"},
                            {"micro-batch-size", "2"},
                            {"optimizer", "sgd,adamw"},
                            {"uneven-tokens", "1"}});
  EXPECT_EQ(cases.size(), sanitized ? 2U : 4U);
  expect_passed(cases, 4);
}

// First a shared table next to positions, with recomputed layers. Then the table is alone in its
// bucket.
TEST(TrainingStep, AGptStepShardsGradientsAndValues) {
  for (const auto& [args, granularity] :
       {std::pair("none", "full"), {"--position-embedding-type rope", "none"}}) {
    const auto cases = steps({{"model-args", args},
                              {"zero-stage", "2,3"},
                              {"ranks", "4"},
                              {"tensor-model-parallel-size", "2"},
                              {"data-parallel-size", "2"},
                              {"sequence-parallel", "1"},
                              {"recompute-granularity", granularity}});
    EXPECT_EQ(cases.size(), 2U);
    expect_passed(cases, 4);
  }
}

TEST(TrainingStep, AGptStepOffloadsStatesAndParameters) {
  const auto cases =
      steps({{"ranks", "2"},
             {"data-parallel-size", "2"},
             {"dtype", "bfloat16"},
             {"zero-stage", "1,3"},
             {"offload_optimizer", zero::IoRing::why_not().empty() ? "cpu,nvme" : "cpu"}});
  EXPECT_EQ(cases.size(), zero::IoRing::why_not().empty() ? 4U : 2U);
  expect_passed(cases, 2);
  const auto values = steps({{"ranks", "2"},
                             {"data-parallel-size", "2"},
                             {"zero-stage", "3"},
                             {"offload_param", zero::IoRing::why_not().empty() ? "nvme" : "cpu"}});
  EXPECT_EQ(values.size(), 1U);
  expect_passed(values, 2);
}

// The oracle judges the first step with gathered values.
TEST(TrainingStep, TrainingSpeedSupportsZeroStage3) {
  const auto cases = steps({{"ranks", "2"},
                            {"data-parallel-size", "2"},
                            {"zero-stage", "3"},
                            {"global-batch-size", "8"},
                            {"offload_param", "cpu"}},
                           "training_speed");
  EXPECT_EQ(cases.size(), 1U);
  expect_passed(cases, 2);
}

// Compares ZeRO stages that add in the same order. With one micro-batch, all stages do. With
// several, stages 0 and 1 add micro-batches first, and stages 2 and 3 add ranks first. Clipping is
// off, because the norm is summed bucket by bucket.
TEST(TrainingStep, EveryZeroStageTakesTheSameSteps) {
  const auto train = [](machine::World& world, int stage, int micro_batches, bool late,
                        machine::Degrees degrees = {.tp = 2, .dp = 2}) {
    TrainingConfig config;
    config.degrees = degrees;
    if (degrees.pp > 1) config.pipeline.schedule = "zb_h1";
    set_model(config, "tiny");
    config.optimizer.clipping = 0;
    config.batch.global_batch_size = 2 * micro_batches;
    config.zero.stage = stage;
    config.zero.param_persistence_threshold = 100;
    config.zero.options.stage3_prefetch_bucket_size = late ? 50'000'000 : 7'000;
    config.zero.overlap_comm = late;
    config.zero.options.contiguous_gradients = !late;
    config.zero.options.poison_freed = true;
    config.uneven_tokens = true;
    if (late) {
      config.zero.reduce_bucket_size = 7'000;
      config.zero.options.before_transfer = [&](std::size_t) {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * (1 + world.rank())));
      };
    }
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    std::pair<std::vector<double>, std::uint64_t> seen;
    for (int step = 0; step < 3; ++step) {
      trainer.step();
      seen.first.push_back(trainer.mean_loss());
    }
    seen.second = trainer.hash_of_values();
    return seen;
  };
  machine::run_ranks(4, [&](machine::World& world) {
    const auto one = train(world, 0, 1, false);
    for (int stage = 1; stage < zero::num_stages; ++stage)
      EXPECT_EQ(train(world, stage, 1, false), one) << stage;
    const auto first = train(world, 0, 3, false);
    for (int stage = 0; stage < 2; ++stage)
      EXPECT_EQ(train(world, stage, 3, true), first) << stage << ", late";
    const machine::Degrees deep{.dp = 2, .pp = 2};
    EXPECT_EQ(train(world, 1, 3, true, deep), train(world, 0, 3, false, deep));
    const auto several = train(world, 2, 3, false);
    for (int stage = 2; stage < zero::num_stages; ++stage)
      for (const bool late : {false, true})
        EXPECT_EQ(train(world, stage, 3, late), several) << stage << (late ? ", late" : "");
  });
}

// Gradients in half overflow until the loss scale is small enough. All ranks skip the same steps,
// which change nothing. Then all ranks train.
TEST(TrainingStep, AStepThatOverflowsChangesNothing) {
  machine::run_ranks(4, [](machine::World& world) {
    TrainingConfig config;
    config.degrees = {.tp = 2, .dp = 2};
    set_model(config, "tiny");
    config.precision.dtype = machine::Dtype::float16;
    config.batch.global_batch_size = 4;
    config.precision.loss_scale = {.scaling = zero::LossScaling::megatron, .initial_scale = 0x1p19};
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    const std::uint64_t before = trainer.hash_of_values();
    int skipped = 0;
    while (skipped < 20 && !trainer.step().updated) {
      ++skipped;
      EXPECT_EQ(trainer.hash_of_values(), before);
    }
    EXPECT_GT(skipped, 1);
    EXPECT_LT(skipped, 8);
    EXPECT_EQ(trainer.loss_scale(), std::ldexp(0x1p19, 1 - skipped));  // first skip keeps the scale
    EXPECT_NE(trainer.hash_of_values(), before);
    const std::vector<std::string> all = world.all_gather(world.group(), std::to_string(skipped));
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 1U);
  });
}

// With four query groups and tp 4, a rank has one head of keys. Dropout must affect the same
// elements at all degrees, or the results would differ from those of degree 1.
TEST(TrainingStep, ModelArgumentsSetTheShapeOfAGptStep) {
  for (const auto& [model, args] :
       {std::pair("llama_tiny", "none"),
        {"tiny",
         "--hidden-dropout 0.1 --attention-dropout 0.2 --swiglu --normalization=RMSNorm"}}) {
    if (sanitized && args == std::string("none")) continue;
    const auto cases = steps({{"model", model},
                              {"model-args", args},
                              {"ranks", "4"},
                              {"tensor-model-parallel-size", sanitized ? "2" : "2,4"},
                              {"pipeline-model-parallel-size", sanitized ? "2" : "1,2"},
                              {"sequence-parallel", sanitized ? "1" : "0,1"},
                              {"recompute-granularity", "full"}});
    EXPECT_EQ(cases.size(), sanitized ? 1U : 4U);
    expect_passed(cases, 4);
  }
}

TEST(TrainingStep, RejectsInvalidModelArgumentsByName) {
  const auto refused = [](const std::string& args) {
    return refusal("gpt_step", {{"model", "tiny"}, {"model-args", args}, {"ranks", "1"}});
  };
  EXPECT_EQ(refused("--swiglu"), "accepted");
  EXPECT_EQ(refused("--num-query-groups 2"), "accepted");
  EXPECT_EQ(refused("--lr 0.5 --normalization RMSnorm"), "accepted");
  testing::expect_words(refused("--swigul"), {"model-args", "did you mean '--swiglu'"});
  testing::expect_words(refused("--hidden-dropout"), {"--hidden-dropout has no value"});
  testing::expect_words(refused("--hidden-dropout many"), {"--hidden-dropout is 'many'"});
  testing::expect_words(refused("--num-query-groups 3"), {"num-query-groups is 3"});
  testing::expect_words(refused("--attention-dropout 1"), {"--attention-dropout is 1", "from 0"});
  // Other axes have their own flags.
  testing::expect_words(refused("--zero-stage 3"), {"--zero-stage is 1", "--zero-stage is 3"});
}

TEST(TrainingStep, WeightFilesRequireTheGpt2Shape) {
  harness::RunOptions options;
  options.save_file = "nowhere.safetensors";
  const auto cases = steps({{"model", "llama_tiny"}, {"ranks", "1"}}, "llama_step");
  ASSERT_EQ(cases.size(), 1U);
  const harness::Record record = run(cases, 1, 0.001, options).at(0);
  EXPECT_EQ(record.verdict, harness::Ruling::fail);
  EXPECT_NE(record.reason.find("normalization LayerNorm, but the model has RMSNorm"),
            std::string::npos)
      << record.reason;
}

#ifndef __SANITIZE_THREAD__  // slow, and files do not depend on threads
TEST(TrainingStep, AGptStepUsesDataAndWeightFiles) {
  const testing::Folder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::to_string(i * i) + (i % 7 == 0 ? "\n\n" : " ");
  testing::write_bytes(folder.path("text"), text);
  write_text_tokens(folder.path("text"), folder.path("pair"));
  const auto step = [](const std::string& tp, const harness::RunOptions& options) {
    const auto cases = steps({{"tensor-model-parallel-size", tp}, {"ranks", tp}});
    return run(cases, std::stoi(tp), 0.02, options).at(0);
  };
  harness::RunOptions options;
  options.data_file = folder.path("text");
  options.save_file = folder.path("weights.safetensors");
  const harness::Record first = step("1", options);
  ASSERT_EQ(first.verdict, harness::Ruling::pass) << first.reason;
  EXPECT_GT(first.counters.at("loss_error"), 0);
  EXPECT_LT(first.counters.at("loss_error"), 1e-5);
  options.data_file = folder.path("pair");
  options.load_file = folder.path("weights.safetensors");
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

// Other load lengthens a step, also between its parts. One undisturbed try is enough.
TEST(TrainingStep, AStepIsBrokenDownOnEveryRank) {
  const auto cases = steps({{"ranks", "4"},
                            {"tensor-model-parallel-size", "2"},
                            {"pipeline-model-parallel-size", "2"},
                            {"recompute-granularity", "full"}});
  ASSERT_EQ(cases.size(), 1U);
  double most_of_other = 1, off = 1;
  for (int tries = 0; tries < 20 && (most_of_other >= 0.01 || off >= 0.1); ++tries) {
    const harness::Record record = run(cases, 4, 0.1).at(0);
    ASSERT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
    const harness::StepBreakdown& all = record.step_breakdown;
    EXPECT_EQ(all.parts, (std::vector<std::string>{"data", "forward", "recompute", "backward input",
                                                   "backward weights", "communication tp",
                                                   "communication pp", "communication embedding",
                                                   "bubble", "optimizer", "other"}));
    ASSERT_EQ(all.ranks(), 4);
    double slowest = 0, bubble = 0;
    most_of_other = 0;
    for (const std::vector<double>& rank : all.seconds) {
      const double step = std::accumulate(rank.begin(), rank.end(), 0.0);
      slowest = std::max(slowest, step);
      most_of_other = std::max(most_of_other, rank.back() / step);
      for (const std::size_t part : {1, 3, 4, 5, 9}) EXPECT_GT(rank[part], 0) << all.parts[part];
      bubble += rank[8];  // a late rank finds its input ready
    }
    EXPECT_GT(bubble, 0);
    off = std::abs(slowest / record.seconds - 1);
    EXPECT_GT(record.counters.at("communication_fraction"), 0);
    // A rank waits for its tp group and for the neighbours of its stage, but not for the diagonal
    // rank.
    EXPECT_EQ(all.waited_s[0][3] + all.waited_s[3][0] + all.waited_s[1][2] + all.waited_s[2][1], 0);
    std::set<int> ranks;
    for (const harness::Span& span : record.trace) ranks.insert(span.rank);
    EXPECT_EQ(ranks.size(), 4U);
  }
  EXPECT_LT(most_of_other, 0.01);
  EXPECT_LT(off, 0.1) << "the step shown is not the one timed";
}

// If a link is slowed by a known time, only the communication time of dp grows by this time.
TEST(TrainingStep, ASlowLinkAddsOnlyToItsCommunication) {
  constexpr double added_s = 0.02;
  constexpr int rounds = 5;
  const auto corpus = Corpus::generated(1234);
  machine::run_ranks(2, [&](machine::World& world) {
    struct Seen {  // minimum of all rounds: other load only adds time
      double step = 1e9, dp = 1e9, rest = 1e9;
      int transfers = 0;
    } quick, slow;
    for (Seen* const seen : {&quick, &slow}) {
      TrainingConfig config;
      set_model(config, "tiny");
      config.zero.stage = 1;
      config.degrees = {.dp = 2};
      config.zero.options.before_transfer = [&](std::size_t) {
        ++seen->transfers;
        if (seen == &slow) std::this_thread::sleep_for(std::chrono::duration<double>(added_s));
      };
      Trainer trainer(world, world.group(), world.device(), config, corpus);
      trainer.step();
      seen->transfers = 0;
      for (int round = 0; round < rounds; ++round) {
        machine::StepClock clock;
        clock.start();
        trainer.step();
        clock.stop();
        const double step = clock.times().end_s - clock.times().start_s;
        double dp = 0;
        for (const auto& row : clock.times().own.rows)
          if (row.text() == "communication dp") dp = row.seconds;
        seen->step = std::min(seen->step, step);
        seen->dp = std::min(seen->dp, dp);
        seen->rest = std::min(seen->rest, step - dp);
      }
    }
    const double added = added_s * slow.transfers / rounds;
    EXPECT_GE(slow.transfers, 2 * rounds);
    EXPECT_GE(slow.dp, added);
    EXPECT_LT(slow.dp, added + quick.step + added / 2);
    EXPECT_LT(slow.rest, quick.step + added / 2);
  });
}

TEST(TrainingStep, TrainingSpeedReportsTheGemmFraction) {
  const auto cases = steps(
      {{"ranks", "1"}, {"seq-length", "16"}, {"micro-batch-size", "4"}, {"global-batch-size", "4"}},
      "training_speed");
  ASSERT_EQ(cases.size(), 1U);
  const harness::Record record = run(cases, 1).at(0);
  ASSERT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
  EXPECT_GT(record.counters.at("gemm_fraction"), 0);
  EXPECT_GT(record.counters.at("tokens_per_second"), 0);
  EXPECT_FALSE(record.counters.contains("speedup_over_library"));
  // n = 64 tokens and h = 32. Each of two layers has 12 h² weights and two products of n * s * h
  // for attention, as full squares. Each product runs three times, with 2 operations per term.
  const double n = 64, s = 16, h = 32;
  EXPECT_EQ(record.counters.at("gemm_flops"), 3 * 2 * n * (2 * (12 * h * h + 2 * s * h) + 256 * h));
}

}  // namespace
}  // namespace suite
