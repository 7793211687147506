// Fragmentation, and the arena that prevents it.

#include "machine/device/arena/memory_block.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/arena/contiguous_arena.h"

namespace machine {
namespace {

constexpr std::size_t unit = MemoryBlock::alignment;

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const MachineError& error) {
    return error.what();
  }
  return "";
}

TEST(FreeList, TakesTheFirstHoleOrTheSmallest) {
  for (const Fit fit : {Fit::first, Fit::best}) {
    FreeList list(fit);
    list.give(0, 30);
    list.give(100, 10);
    list.give(200, 20);
    EXPECT_EQ(list.bytes(), 60U);
    EXPECT_EQ(list.longest(), 30U);
    EXPECT_EQ(list.take(10, 1), fit == Fit::first ? 0U : 100U);
    EXPECT_EQ(list.take(18, 1), fit == Fit::first ? 10U : 200U);
    EXPECT_EQ(list.bytes(), 32U);
    EXPECT_EQ(list.take(31, 1), std::nullopt);
    EXPECT_EQ(list.bytes(), 32U) << "what does not fit takes nothing";
  }
}

TEST(FreeList, JoinsNeighbours) {
  FreeList list(Fit::first);
  list.give(0, 100);
  for (const std::size_t offset : {0U, 25U, 50U, 75U}) ASSERT_EQ(list.take(25, 1), offset);
  EXPECT_EQ(list.longest(), 0U);
  list.give(0, 25);
  list.give(50, 25);
  EXPECT_EQ(list.bytes(), 50U);
  EXPECT_EQ(list.longest(), 25U);
  list.give(25, 25);
  EXPECT_EQ(list.longest(), 75U);
}

TEST(MemoryBlock, ReportsFreeBytesAndTheLongestBlock) {
  MemoryBlock block(5 * unit, Fit::first);
  const auto device = make_host_device(block);
  std::vector<Memory> held;
  for (int i = 0; i < 5; ++i) held.push_back(device->allocate(unit - 1, Category::gradients));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held[1].data()) % unit, 0U);
  EXPECT_EQ(block.offset(held[3].data()), 3 * unit);
  EXPECT_EQ(block.free_bytes(), 0U);
  for (const std::size_t i : {0U, 2U, 3U}) held[i] = Memory();
  EXPECT_EQ(block.free_bytes(), 3 * unit);
  EXPECT_EQ(block.longest_free(), 2 * unit);
  EXPECT_EQ(external_fragmentation(block.longest_free(), block.free_bytes()), 1 - 2.0 / 3);
  const std::string text = refusal([&] { device->allocate(2 * unit + 1, Category::activations); });
  for (const char* part : {"1025 bytes of activations", "1536 of 2560 bytes are free", "has 1024"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_EQ(device->ledger().current(), 2 * (unit - 1)) << "what failed is not counted";
  held.push_back(device->allocate(2 * unit, Category::activations));
  EXPECT_EQ(block.highest(), 5 * unit);
  EXPECT_NE(refusal([&] { device->allocate(~std::size_t{0}, Category::buffers); }), "");
  held.clear();
  EXPECT_EQ(block.longest_free(), 5 * unit);
  EXPECT_EQ(external_fragmentation(block.longest_free(), block.free_bytes()), 0);
  EXPECT_EQ(external_fragmentation(0, 0), 0);
}

// The smallest pattern of a recomputed backward. A gradient takes the place of a freed checkpoint,
// so the next micro-batch's checkpoint no longer fits.
TEST(MemoryBlock, FragmentsIfGradientsTakeThePlacesOfCheckpoints) {
  constexpr int layers = 4;
  constexpr std::size_t checkpoint = 3 * unit, gradient = 2 * unit;
  for (const Fit fit : {Fit::first, Fit::best}) {
    MemoryBlock block(layers * (checkpoint + gradient), fit);
    const auto device = make_host_device(block);
    std::vector<Memory> checkpoints, gradients;
    const auto forward = [&] {
      for (int i = 0; i < layers; ++i)
        checkpoints.push_back(device->allocate(checkpoint, Category::activations));
    };
    forward();
    for (int i = 0; i < layers; ++i) {
      checkpoints.pop_back();
      gradients.push_back(device->allocate(gradient, Category::gradients));
    }
    const std::string text = refusal(forward);
    EXPECT_NE(text.find("1536 bytes of activations"), std::string::npos) << text;
    EXPECT_GE(block.free_bytes(), checkpoint);
    EXPECT_LT(block.longest_free(), checkpoint);
  }
}

TEST(ContiguousArena, SeparatesLongLivedTensors) {
  constexpr int layers = 4;
  constexpr std::int64_t floats = static_cast<std::int64_t>(unit / sizeof(float));
  constexpr std::int64_t checkpoint = 3 * floats, gradient = 2 * floats;
  for (const Fit fit : {Fit::first, Fit::best}) {
    MemoryBlock block(layers * 5 * unit, fit);
    const auto device = make_host_device(block);
    ContiguousArena checkpoints(*device, Dtype::float32, layers * checkpoint,
                                Category::activations);
    ContiguousArena gradients(*device, Dtype::float32, layers * gradient, Category::gradients);
    EXPECT_EQ(block.free_bytes(), 0U);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (int i = 0; i < layers; ++i)
        EXPECT_EQ(checkpoints.take({checkpoint}).data(),
                  checkpoints.whole().as<float>() + i * checkpoint);
      EXPECT_EQ(checkpoints.left(), 0);
      checkpoints.clear();
    }
    const Tensor first = gradients.take({2, floats}), second = gradients.take({gradient});
    EXPECT_EQ(second.as<float>(), first.as<float>() + gradient);
    EXPECT_EQ(device->ledger().peak(Category::gradients), layers * 2 * unit);
    const std::string text = refusal([&] { gradients.take({3, gradient}); });
    for (const char* part : {"1024 elements", "512 left", "768 for [3, 256]"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(gradients.left(), 2 * gradient) << "what failed took nothing";
  }
}

}  // namespace
}  // namespace machine
