// The training step with every pipeline schedule, and the division of its layers into parts.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/testing/file_case.h"
#include "suite/testing/small_steps.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

using on_threads::refusal;
using on_threads::run;
using on_threads::sanitized;
using small_steps::expect_passed;
using small_steps::steps;

// One rank has the first and the last chunk, or a chunk has two copies. The chunks are also sharded
// over tp and dp, are recomputed, and differ in their numbers of layers.
TEST(TrainingStep, AGptStepRunsEverySchedule) {
  const auto cases = steps({{"model-args", "--num-layers 5"},
                            {"ranks", sanitized ? "2" : "4"},
                            {"tensor-model-parallel-size", sanitized ? "1" : "1,2"},
                            {"pipeline-model-parallel-size", "2"},
                            {"data-parallel-size", sanitized ? "1" : "1,2"},
                            {"schedule", sanitized ? "zb_h1,zb_v,dual_pipe"
                                                   : "interleaved_1f1b,zb_h1,zb_h2,zb_v,dual_pipe"},
                            {"partition-method", "parameters"},
                            {"recompute-granularity", "full"},
                            {"uneven-tokens", "1"}});
  EXPECT_EQ(cases.size(), sanitized ? 3U : 10U);
  expect_passed(cases, 4);
}

TEST(TrainingStep, MessagesAheadNeedALinkThatReceivesAhead) {
  const auto over = [](const char* transport) {
    return refusal("gpt_step", {{"model", "tiny"},
                                {"ranks", "2"},
                                {"pipeline-model-parallel-size", "2"},
                                {"overlap-p2p-communication", "on"},
                                {"transport", transport}});
  };
  for (const char* transport : {"shared_memory", "mpi", "cuda_ipc"})
    EXPECT_EQ(over(transport), "accepted") << transport;
  suite::testing::expect_words(over("nccl"),
                               {"overlap-p2p-communication on requires transport shared_memory"});
}

// Every forward and backward of a chunk is a pass that gathers, reduces and frees. Several
// micro-batches are in flight; first, last and copied chunks share or tie the table.
TEST(TrainingStep, ZeroStages2And3RunEverySchedule) {
  for (const char* schedule :
       {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "dual_pipe"}) {
    if (sanitized && schedule != std::string("zb_v")) continue;
    const auto cases = steps({{"model-args", "--num-layers 4"},
                              {"ranks", "4"},
                              {"zero-stage", "2,3"},
                              {"pipeline-model-parallel-size", "2"},
                              {"data-parallel-size", "2"},
                              {"schedule", schedule},
                              {"recompute-granularity", "full"},
                              {"uneven-tokens", "1"}});
    EXPECT_EQ(cases.size(), 2U) << schedule;
    expect_passed(cases, 4);
  }
  const auto sharded = steps({{"ranks", "8"},
                              {"zero-stage", "2,3"},
                              {"tensor-model-parallel-size", "2"},
                              {"pipeline-model-parallel-size", "2"},
                              {"data-parallel-size", "2"},
                              {"sequence-parallel", "1"},
                              {"schedule", "1f1b"}});
  EXPECT_EQ(sharded.size(), 2U);
  if (!sanitized) expect_passed(sharded, 8);
}

// Neither depends on the stage: passes are reduced in their order, micro-batch by micro-batch.
TEST(TrainingStep, PipelinesTakeTheSameStepsInStages2And3) {
  const auto train = [](machine::World& world, const char* schedule, int stage, bool overlap) {
    TrainingConfig config;
    config.degrees = {.dp = 2, .pp = 2};
    set_model(config, "tiny");
    config.model.layers = 4;
    config.pipeline.schedule = schedule;
    config.optimizer.clipping = 0;
    config.batch.global_batch_size = 8;
    config.zero.stage = stage;
    config.zero.overlap_comm = overlap;
    config.zero.param_persistence_threshold = 100;
    config.zero.options.stage3_prefetch_bucket_size = 7'000;
    config.zero.options.poison_freed = true;
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      trainer.step();
      losses.push_back(trainer.mean_loss());
    }
    return std::pair(losses, trainer.hash_of_values());
  };
  machine::run_ranks(4, [&](machine::World& world) {
    for (const char* schedule : {"1f1b", "zb_v"}) {
      const auto second = train(world, schedule, 2, false);
      EXPECT_EQ(train(world, schedule, 2, true), second) << schedule;
      for (const bool overlap : {false, true})
        EXPECT_EQ(train(world, schedule, 3, overlap), second) << schedule << overlap;
    }
  });
}

// The closed form of ZeRO's paper (Rajbhandari et al. 2020, arXiv:1910.02054, section 7) for a rank
// with Psi padded elements, m micro-batches and d ranks. Nothing here reads buckets or passes.
// Every backward reduces the stage's gradients. Stage 3 gathers all values in forward, and in
// backward all but the token table, whose backward reads no value.
TEST(TrainingStep, ZeroWithPipelinesSendsTheBytesOfThePaper) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"})
    for (const int stage : {2, 3})
      machine::run_ranks(4, [&](machine::World& world) {
        SCOPED_TRACE(std::string(schedule) + ", stage " + std::to_string(stage));
        TrainingConfig config;
        config.degrees = {.dp = 2, .pp = 2};
        set_model(config, "tiny");
        config.model.layers = 4;
        config.model.position_embedding_type = layers::PositionEmbedding::rope;
        config.model.untie_embeddings_and_output_weights = true;
        config.pipeline.schedule = schedule;
        config.batch.global_batch_size = 8;
        config.zero.stage = stage;
        config.zero.overlap_comm = false;
        config.zero.param_persistence_threshold = 0;
        const Corpus corpus = Corpus::generated(1);
        Trainer trainer(world, world.group(), world.device(), config, corpus);
        trainer.step();
        machine::Link& dp = trainer.communicator("dp")->link();
        dp.reset_traffic();
        trainer.step();
        const auto sent = [&](machine::Operation operation) {
          return dp.traffic().at({operation, machine::Dtype::float32}).bytes_sent;
        };
        const auto psi = static_cast<std::uint64_t>(trainer.states().layout().elements);
        const bool has_table = trainer.schedules().placement.at(0, 0).stage ==
                               trainer.grid().coordinate(machine::Axis::pp);
        const std::uint64_t m = 4, half = sizeof(float) / 2,  // (d - 1) / d of four bytes
            table = has_table ? std::uint64_t{256} * 32 : 0;
        EXPECT_EQ(sent(machine::Operation::reduce_scatter), m * psi * half);
        EXPECT_EQ(sent(machine::Operation::all_gather),
                  stage == 2 ? psi * half : m * (2 * psi - table) * half);
      });
}

// Measured times differ between runs. Both trainers of a case and all ranks use the same division.
TEST(TrainingStep, LayersAreDividedByMeasuredTime) {
  const auto cases = steps({{"model-args", "--num-layers 5"},
                            {"ranks", "4"},
                            {"tensor-model-parallel-size", "2"},
                            {"pipeline-model-parallel-size", "2"},
                            {"schedule", "1f1b"},
                            {"partition-method", "profile"}});
  ASSERT_EQ(cases.size(), 1U);
  const harness::Record record = run(cases, 4).front();
  EXPECT_EQ(record.verdict, harness::Ruling::pass) << record.reason;
  EXPECT_TRUE(record.note.starts_with("layers of the pipeline's parts: ")) << record.note;
  const double measured = record.counters.at("bubble_measured");
  EXPECT_GT(measured, 0.05);
  EXPECT_NEAR(measured / record.counters.at("bubble_expected"), record.counters.at("bubble_ratio"),
              1e-9);
  EXPECT_NEAR(record.counters.at("bubble_expected"), 1.0 / 9, 1e-6);  // 8 micro-batches
  EXPECT_GE(record.counters.at("bubble_simulated"), 1.0 / 9 - 1e-6);
}

TEST(TrainingStep, RejectsUnsuitableSchedulesByName) {
  const auto refused = [](harness::AxisFlags flags) {
    flags.insert({{"model", "tiny"},
                  {"ranks", "2"},
                  {"tensor-model-parallel-size", "1"},
                  {"pipeline-model-parallel-size", "2"},
                  {"data-parallel-size", "1"},
                  {"model-args", "--num-layers 4"}});
    return refusal("gpt_step", flags);
  };
  const std::string stages = "num-virtual-stages-per-pipeline-rank";
  EXPECT_EQ(refused({{"schedule", "interleaved_1f1b"}, {stages, "2"}}), "accepted");
  testing::expect_words(refused({{"schedule", "interleaved_1f1b"}, {stages, "1"}}),
                        {stages + " 1", "equals 1f1b", "is 2"});
  testing::expect_words(refused({{"schedule", "interleaved_1f1b"}, {stages, "many"}}),
                        {stages + " is 'many'", "whole number or 'schedule'"});
  testing::expect_words(refused({{"schedule", "interleaved_1f1b"}, {stages, "4"}}),
                        {"8 parts", "4 layers"});
  testing::expect_words(refused({{"schedule", "zb_h1"}, {stages, "2"}}), {"zb_h1", "1 chunk"});
  testing::expect_words(refused({{"schedule", "dual_pipe"}, {"global-batch-size", "2"}}),
                        {"dual_pipe", "2 micro-batches", "m >= 2p"});
  testing::expect_words(refused({{"schedule", "zb_vv"}}), {"'zb_v'"});
  testing::expect_words(refused({{"partition-method", "parameter"}}), {"'parameters'"});
  for (const char* schedule : {"gpipe", "interleaved_1f1b", "zb_h1", "zb_v", "dual_pipe"})
    EXPECT_EQ(refused({{"schedule", schedule}, {"zero-stage", "2,3"}}), "accepted") << schedule;
}

// The table is as large as three layers, so the first and the last part get fewer layers.
TEST(TrainingStep, LayersAreDividedByParameters) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.model.layers = 8;
  config.model.vocabulary = 1152;
  config.degrees.pp = 2;
  config.pipeline.schedule = "interleaved_1f1b";
  config.pipeline.virtual_stages = 2;
  EXPECT_EQ(layers_of_parts(config), (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(stages_of_layers(config, placement(config)),
            (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1, 1}));
  config.pipeline.partition_method = "parameters";
  EXPECT_EQ(layers_of_parts(config), (std::vector<int>{1, 3, 3, 1}));
  config.pipeline.partition_method = "profile";
  config.pipeline.layer_costs = {40, 10, 10, 10, 10, 10, 10, 50};
  EXPECT_EQ(layers_of_parts(config), (std::vector<int>{1, 3, 3, 1}));
  config.pipeline.layer_costs = {10, 10, 10, 10, 10, 10, 10, 35};
  EXPECT_EQ(layers_of_parts(config), (std::vector<int>{3, 2, 2, 1}));
  config.model.layers = 3;
  EXPECT_THROW(layers_of_parts(config), std::invalid_argument);
}

}  // namespace
}  // namespace suite
