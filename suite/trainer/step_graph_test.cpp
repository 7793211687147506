// Steps that are launches of a CUDA graph, compared with steps whose work is queued each time:
// bits, losses, messages and memory.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "suite/configuration/models.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

constexpr int steps = 4;

using Messages = std::map<machine::TrafficLabel, machine::Traffic>;

struct Training {
  std::vector<double> losses, norms;
  std::vector<bool> updated;
  std::vector<Messages> messages;                   // of all links, step by step
  std::uint64_t hash = 0;                           // of the last values
  std::map<machine::Category, std::size_t> memory;  // the peak of each category from step 2 on
  std::string order;                                // of the last step's actions
};

struct Kind {
  std::string name;
  machine::Degrees degrees;
  std::function<void(TrainingConfig&)> set = [](TrainingConfig&) {};
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

TrainingConfig config_of(const Kind& kind, bool graph) {
  TrainingConfig config;
  set_model(config, "tiny");
  config.degrees = kind.degrees;
  config.transport = machine::Transport::nccl;
  config.graph = graph;
  config.zero.overlap_comm = false;
  config.batch.global_batch_size = 4;
  kind.set(config);
  return config;
}

std::vector<machine::Link*> links_of(const Trainer& trainer) {
  std::vector<machine::Link*> all;
  for (const Trainer::Group& group : trainer.groups())
    for (machine::Link* link : group.links()) all.push_back(link);
  return all;
}

// Returns what each rank saw.
std::vector<Training> train(const TrainingConfig& config) {
  const int ranks = config.degrees.ranks();
  std::vector<Training> all(static_cast<std::size_t>(ranks));
  machine::run_ranks(ranks, [&](machine::World& world) {
    world.use_device(machine::cuda::make_device(world.rank()));
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    Training& mine = all[static_cast<std::size_t>(world.rank())];
    machine::Ledger& ledger = world.device().ledger();
    for (int step = 0; step < steps; ++step) {
      if (step == 1) ledger.reset_peaks();
      for (machine::Link* link : links_of(trainer)) link->reset_traffic();
      trainer.forward_backward();
      mine.losses.push_back(trainer.mean_loss());
      trainer.reduce();
      const zero::StepResult result = trainer.update();
      if (result.updated) mine.norms.push_back(result.gradient_norm);
      mine.updated.push_back(result.updated);
      for (machine::Link* link : links_of(trainer)) mine.messages.push_back(link->traffic());
    }
    mine.hash = trainer.hash_of_values();  // not before: it waits for values
    for (const machine::Category category : machine::all_categories)
      mine.memory[category] = ledger.peak(category);
    mine.order = pipeline::executed(trainer.timeline().events);
  });
  return all;
}

// Returns what rank 0 saw with graphs.
Training expect_same(const Kind& kind) {
  const std::vector<Training> queued = train(config_of(kind, false)),
                              launched = train(config_of(kind, true));
  for (std::size_t rank = 0; rank < queued.size(); ++rank) {
    const std::string where = kind.name + ", rank " + std::to_string(rank);
    EXPECT_EQ(launched[rank].losses, queued[rank].losses) << where;
    EXPECT_EQ(launched[rank].norms, queued[rank].norms) << where;
    EXPECT_EQ(launched[rank].hash, queued[rank].hash) << where;
    EXPECT_EQ(launched[rank].updated, queued[rank].updated) << where;
    EXPECT_EQ(launched[rank].messages, queued[rank].messages) << where;
    EXPECT_EQ(launched[rank].memory, queued[rank].memory) << where;
    EXPECT_EQ(launched[rank].order, queued[rank].order) << where;
  }
  return launched[0];
}

class StepGraphs : public testing::TestWithParam<Kind> {};

TEST_P(StepGraphs, LaunchesAreSteps) {
  if (machine::cuda::count() < GetParam().degrees.ranks())
    GTEST_SKIP() << "requires " << GetParam().degrees.ranks() << " CUDA devices";
  const Training launched = expect_same(GetParam());
  EXPECT_LT(launched.losses.back(), launched.losses.front());
}

auto zero_stage(int stage, bool overlaps) {
  return [=](TrainingConfig& config) {
    config.zero.stage = stage;
    config.zero.overlap_comm = overlaps;
    config.zero.reduce_bucket_size = 4000;
    config.zero.param_persistence_threshold = 100;
    config.zero.options.stage3_prefetch_bucket_size = 4000;
  };
}

std::string name_of(const testing::TestParamInfo<Kind>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Kinds, StepGraphs,
    testing::Values(
        Kind{"one", {}},
        Kind{"recomputed",
             {},
             [](TrainingConfig& config) {
               config.precision.dtype = machine::Dtype::bfloat16;
               config.activations.recompute_granularity = layers::recompute_granularity("full");
             }},
        Kind{"uneven_tokens",
             {.dp = 2},
             [](TrainingConfig& config) { config.uneven_tokens = true; }},
        Kind{"tensor_parallel",
             {.tp = 2},
             [](TrainingConfig& config) { config.activations.sequence_parallel = true; }},
        Kind{"stages_and_halves",
             {.pp = 2},
             [](TrainingConfig& config) { config.pipeline.schedule = "zb_h1"; }},
        Kind{"stage_0_overlap", {.dp = 2}, zero_stage(0, true)},
        Kind{"stage_1", {.dp = 2}, zero_stage(1, false)},
        Kind{"stage_2", {.dp = 2}, zero_stage(2, false)},
        Kind{"stage_3", {.dp = 2}, zero_stage(3, false)},
        Kind{"offloaded_states",
             {.dp = 2},
             [](TrainingConfig& config) {
               zero_stage(1, false)(config);
               config.zero.options.offload_optimizer.device = zero::OffloadDevice::cpu;
             }},
        Kind{"context_parallel",
             {.cp = 2},
             [](TrainingConfig& config) { config.activations.use_flash_attn = true; }},
        Kind{"in_8_bits",
             {.tp = 2},
             [](TrainingConfig& config) {
               config.precision.dtype = machine::Dtype::bfloat16;
               config.fp8.format = layers::fp8_format("hybrid");
             }},
        Kind{"encoder", {.dp = 2}, [](TrainingConfig& config) { set_model(config, "bert_tiny"); }},
        Kind{"tensor_parallel_stages", {.tp = 2, .pp = 2}}),
    name_of);

// With work in several streams at once. CTest runs these in several orders of streams.
INSTANTIATE_TEST_SUITE_P(OrdersOfStreams, StepGraphs,
                         testing::Values(Kind{"tensor_parallel",
                                              {.tp = 2},
                                              [](TrainingConfig& config) {
                                                config.activations.sequence_parallel = true;
                                                config.activations.tp_comm.enabled = true;
                                              }},
                                         Kind{"stage_1", {.dp = 2, .pp = 2}, zero_stage(1, true)},
                                         Kind{"stage_2", {.dp = 2}, zero_stage(2, true)},
                                         Kind{"stage_3", {.dp = 2, .pp = 2}, zero_stage(3, true)}),
                         name_of);

// The first scales overflow, so each of these steps needs another graph.
TEST(StepGraph, FollowsTheLossScale) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  const Training launched = expect_same(
      {"half", {}, [](TrainingConfig& config) {
         config.precision.dtype = machine::Dtype::float16;
         config.precision.loss_scale = {
             .scaling = zero::LossScaling::megatron, .initial_scale = 0x1p18, .hysteresis = 1};
       }});
  EXPECT_FALSE(launched.updated[1]);
  EXPECT_TRUE(launched.updated[steps - 1]);
}

}  // namespace
}  // namespace suite
