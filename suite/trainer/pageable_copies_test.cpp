// A training step on a CUDA device copies only pinned host memory: tokens, single numbers,
// checkpoints of activations, offloaded states and values.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "machine/testing/pageable_copies.h"
#include "suite/configuration/models.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

struct Kind {
  std::string name;
  std::function<void(TrainingConfig&)> set;
};

void offload(TrainingConfig& config, bool pinned) {
  config.zero.stage = 3;
  config.zero.options.offload_optimizer.device = zero::OffloadDevice::cpu;
  config.zero.options.offload_param.device = zero::OffloadDevice::cpu;
  config.zero.options.offload_optimizer.pin_memory = pinned;
  config.zero.options.offload_param.pin_memory = pinned;
  config.zero.options.offload_optimizer.cpu.piece_size = 1000;
  config.zero.param_persistence_threshold = 100;
}

// Returns the copies of pageable memory in the second step.
std::uint64_t copies_of_a_step(const Kind& kind) {
  std::uint64_t copies = 0;
  machine::run_ranks(1, [&](machine::World& world) {
    world.use_device(machine::cuda::make_device(0));
    TrainingConfig config;
    set_model(config, "tiny");
    config.precision.dtype = machine::Dtype::bfloat16;
    kind.set(config);
    const Corpus corpus = Corpus::generated(1);
    Trainer trainer(world, world.group(), world.device(), config, corpus);
    trainer.step();
    world.device().stream().synchronize();
    const std::uint64_t before = *machine::pageable_copies();
    trainer.step();
    trainer.mean_loss();
    trainer.optimizer_step().wait_for_values();
    world.device().stream().synchronize();
    copies = *machine::pageable_copies() - before;
  });
  return copies;
}

TEST(PageableCopies, AStepHasNone) {
  if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
  if (!machine::pageable_copies())
    GTEST_SKIP() << "only the virtual GPU counts copies of pageable memory";
  const Kind kinds[] = {
      {"in device memory", [](TrainingConfig&) {}},
      {"uneven tokens", [](TrainingConfig& config) { config.uneven_tokens = true; }},
      {"checkpoints in host memory",
       [](TrainingConfig& config) {
         config.activations.recompute_granularity = layers::recompute_granularity("full");
         config.activations.cpu_checkpointing = true;
       }},
      {"half, with overflow checks",
       [](TrainingConfig& config) {
         config.precision.dtype = machine::Dtype::float16;
         config.precision.loss_scale = {.scaling = zero::LossScaling::megatron,
                                        .initial_scale = 1024};
       }},
      {"offloaded states",
       [](TrainingConfig& config) {
         config.zero.stage = 1;
         config.zero.options.offload_optimizer.device = zero::OffloadDevice::cpu;
         config.zero.options.offload_optimizer.cpu.piece_size = 1000;
       }},
      {"offloaded states and values", [](TrainingConfig& config) { offload(config, true); }}};
  for (const Kind& kind : kinds) EXPECT_EQ(copies_of_a_step(kind), 0U) << kind.name;
  const Kind pageable{"pin_memory false", [](TrainingConfig& config) { offload(config, false); }};
  EXPECT_GT(copies_of_a_step(pageable), 0U);
}

}  // namespace
}  // namespace suite
