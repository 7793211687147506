#include "zero/checkpoint/saving.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <latch>

#include "machine/device/kernels.h"
#include "zero/testing/model_case.h"

namespace zero {
namespace {

class PendingSaves : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder); }
  const std::string folder = ::testing::TempDir() + "/pending-" + std::to_string(::getpid());
  static constexpr std::int64_t elements = 4096;
  static Piece piece(int rank) {
    return {"x", {2 * elements}, {rank * elements}, {elements}, {0, elements}};
  }
  double loaded() const {
    const auto host = machine::make_host_device();
    const Tensor all(*host, Dtype::float32, {2 * elements}, machine::Category::buffers);
    Checkpoint(folder).read({"x", {2 * elements}, {0}, {2 * elements}, {0, 2 * elements}}, all);
    const std::vector<double> numbers = to_doubles(all);
    for (const double number : numbers) EXPECT_EQ(number, numbers[0]);
    return numbers[0];
  }
};

// The threads write only after the states have changed.
TEST_F(PendingSaves, TheStateOfTheSaveIsWritten) {
  machine::run_ranks(2, [&](machine::World& world) {
    const Tensor state(world.device(), Dtype::float32, {elements}, machine::Category::parameters);
    machine::Kernels& kernels = world.device().stream().kernels();
    kernels.fill(state, 1);
    const Fill fill = [&](PieceSink& sink) { sink.add(piece(world.rank()), state); };
    save(world, world.group(), folder, {}, fill);
    kernels.fill(state, 2);
    std::latch changed(1);
    PendingSave pending(world, world.group(), folder, {.numbers = {{"steps", 2}}}, fill,
                        [&] { changed.wait(); });
    kernels.fill(state, 3);
    EXPECT_FALSE(pending.try_finish());
    EXPECT_EQ(loaded(), 1);  // not complete yet
    world.barrier(world.group());
    changed.count_down();
    pending.finish();
    EXPECT_EQ(loaded(), 2);
    EXPECT_EQ(Checkpoint(folder).number("steps"), 2u);
  });
}

TEST_F(PendingSaves, AnAbandonedSaveLeavesThePreviousCheckpoint) {
  machine::run_ranks(2, [&](machine::World& world) {
    const Tensor state(world.device(), Dtype::float32, {elements}, machine::Category::parameters);
    machine::Kernels& kernels = world.device().stream().kernels();
    kernels.fill(state, 1);
    const Fill fill = [&](PieceSink& sink) { sink.add(piece(world.rank()), state); };
    save(world, world.group(), folder, {}, fill);
    kernels.fill(state, 2);
    { const PendingSave abandoned(world, world.group(), folder, {}, fill); }
    world.barrier(world.group());
    EXPECT_EQ(loaded(), 1);
  });
}

TEST_F(PendingSaves, AFailureOnOneRankFailsOnAll) {
  machine::run_ranks(2, [&](machine::World& world) {
    for (const bool copying : {true, false}) {
      PendingSave pending(
          world, world.group(), folder, {},
          [&](PieceSink&) {
            if (copying && world.rank() == 1) throw CheckpointError("no room to copy");
          },
          [&] {
            if (!copying && world.rank() == 1) throw CheckpointError("no room to write");
          });
      EXPECT_THROW(pending.finish(), CheckpointError);
    }
    EXPECT_FALSE(std::filesystem::exists(folder + "/index.json"));
  });
}

}  // namespace
}  // namespace zero
