// A step on a CUDA device with its states and values in host memory: the bits of a step in device
// memory, and copies of pinned memory.

#include <gtest/gtest.h>

#include <filesystem>

#include "machine/testing/pageable_copies.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/checkpoint/saving.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

using machine::World;

class CudaCopies : public ::testing::Test {
 protected:
  void SetUp() override {
    if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
    if (!machine::pageable_copies())
      GTEST_SKIP() << "only the virtual GPU counts copies of pageable memory";
  }
};

// One rank of dp in a training of ZeRO stage 1.
struct Training {
  testing::RankModel model;
  GradientPlan plan;
  FlatStates states;
  std::unique_ptr<Step> step;

  Training(World& world, const StepOptions& options)
      : model(world, {.dp = world.size()}),
        plan(gradient_plan(model.list(), machine::Dtype::bfloat16, model.grid, 48)),
        states(world.device(), plan, model.list(), {.reduce_bucket_size = 1}) {
    model.set_values();
    step = make_step(1, states, plan, model.communicators(), options);
  }
  // Returns the number of copies of pageable memory by all ranks.
  std::uint64_t pageable_copies_of_a_step(World& world, int number) {
    model.set_gradients(number);
    world.barrier(world.group());
    const std::uint64_t before = *machine::pageable_copies();
    world.barrier(world.group());
    step->step();
    states.device().stream().synchronize();
    world.barrier(world.group());
    const std::uint64_t after = *machine::pageable_copies();
    world.barrier(world.group());
    return after - before;
  }
};

StepOptions offloading(bool pinned) {
  StepOptions options{.all_reduce = "direct"};
  options.offload_optimizer.device = OffloadDevice::cpu;
  options.offload_optimizer.cpu.piece_size = 50;
  options.offload_optimizer.pin_memory = pinned;
  return options;
}

TEST_F(CudaCopies, OffloadedStatesArePinnedUnlessPinMemoryIsFalse) {
  machine::run_ranks(2, [](World& world) {
    world.use_device(machine::cuda::make_device(0));
    Training on_device(world, {.all_reduce = "direct"});
    Training pinned(world, offloading(true)), pageable(world, offloading(false));
    for (int step = 0; step < 3; ++step) {
      // Single numbers, such as a norm.
      const std::uint64_t numbers = on_device.pageable_copies_of_a_step(world, step);
      EXPECT_EQ(pinned.pageable_copies_of_a_step(world, step), numbers);
      EXPECT_GT(pageable.pageable_copies_of_a_step(world, step), numbers);
      const std::uint64_t bits = hash(on_device.states.values());
      EXPECT_EQ(hash(pinned.states.values()), bits) << step;
      EXPECT_EQ(hash(pageable.states.values()), bits) << step;
      world.barrier(world.group());
    }
  });
}

// Larger than two parts, and not a whole number of them.
TEST_F(CudaCopies, CheckpointsArePinned) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "checkpoint_of_cuda_memory";
  machine::run_ranks(1, [&](World& world) {
    world.use_device(machine::cuda::make_device(0));
    constexpr std::int64_t elements = (20 << 20) / 4 + 3;
    const machine::Tensor saved(world.device(), machine::Dtype::float32, {elements},
                                machine::Category::parameters);
    const machine::Tensor loaded(world.device(), machine::Dtype::float32, {elements},
                                 machine::Category::parameters);
    world.device().stream().kernels().fill_uniform(saved, 7, {}, -1, 1);
    const Piece piece{"x", {elements}, {0}, {elements}, {0, elements}};
    const std::uint64_t before = *machine::pageable_copies();
    save(world, world.group(), folder.string(), {},
         [&](PieceSink& writer) { writer.add(piece, saved); });
    Checkpoint(folder.string()).read(piece, loaded);
    EXPECT_EQ(*machine::pageable_copies(), before);
    EXPECT_EQ(hash(loaded), hash(saved));
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace zero
