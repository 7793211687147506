#include "machine/device/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "machine/base/error.h"
#include "machine/device/device.h"

namespace machine {
namespace {

TEST(Memory, IsCountedByCategoryUntilFreed) {
  const auto device = make_host_device();
  const Ledger& ledger = device->ledger();
  {
    const Memory weights = device->allocate(1000, Category::parameters);
    EXPECT_EQ(weights.bytes(), 1000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights.data()) % 64, 0u);
    Memory first = device->allocate(24, Category::activations);
    const Memory second = device->allocate(40, Category::activations);
    EXPECT_EQ(ledger.current(Category::activations), 64u);
    EXPECT_EQ(ledger.current(), 1064u);
    const Memory moved = std::move(first);
    EXPECT_EQ(ledger.current(), 1064u);
  }
  EXPECT_EQ(ledger.current(), 0u);
  EXPECT_EQ(ledger.peak(Category::parameters), 1000u);
  EXPECT_EQ(ledger.peak(Category::activations), 64u);
  EXPECT_EQ(ledger.peak(Category::optimizer), 0u);
  EXPECT_EQ(ledger.peak(), 1064u);
}

TEST(Memory, PeakOfTheSumIsNotTheSumOfPeaks) {
  const auto device = make_host_device();
  { const Memory first = device->allocate(100, Category::gradients); }
  { const Memory second = device->allocate(70, Category::buffers); }
  EXPECT_EQ(device->ledger().peak(), 100u);
  const Memory held = device->allocate(30, Category::buffers);
  device->ledger().reset_peaks();
  EXPECT_EQ(device->ledger().peak(), 30u);
  EXPECT_EQ(device->ledger().peak(Category::buffers), 30u);
  EXPECT_EQ(device->ledger().peak(Category::gradients), 0u);
}

TEST(Memory, MoveAssignmentFreesTheOldMemory) {
  const auto device = make_host_device();
  Memory memory = device->allocate(10, Category::buffers);
  memory = device->allocate(20, Category::buffers);
  EXPECT_EQ(device->ledger().current(), 20u);
  memory = Memory();
  EXPECT_EQ(device->ledger().current(), 0u);
}

TEST(Memory, ZeroBytesAreEmpty) {
  const auto device = make_host_device();
  const Memory memory = device->allocate(0, Category::buffers);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(device->ledger().peak(), 0u);
}

// A segment of 256 bytes, like one that ranks share.
class Segment final : public HostMemory {
 public:
  void* allocate(std::size_t bytes) override {
    if (bytes > sizeof(bytes_)) return nullptr;
    ++live;
    return bytes_;
  }
  void free(void* data, std::size_t bytes) override {
    EXPECT_EQ(data, bytes_);
    EXPECT_EQ(bytes, 200u);
    --live;
  }
  int live = 0;

 private:
  alignas(64) char bytes_[256];
};

TEST(Memory, ComesFromTheSegmentAndNamesTheMissingBytes) {
  Segment segment;
  const auto device = make_host_device(segment);
  const Memory memory = device->allocate(200, Category::optimizer);
  EXPECT_EQ(segment.live, 1);
  try {
    device->allocate(300, Category::optimizer);
    FAIL() << "300 bytes fitted into 256";
  } catch (const MachineError& error) {
    const std::string text = error.what();
    for (const char* part : {"300 bytes", "optimizer", "200"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(device->ledger().current(), 200u);
}

TEST(Device, EventsAreOrdered) {
  const auto device = make_host_device();
  const auto first = device->stream().record();
  const auto second = device->stream().record();
  EXPECT_GE(second->seconds_since(*first), 0);
  EXPECT_EQ(second->seconds_since(*first), -first->seconds_since(*second));
}

TEST(Device, AMissingCudaDeviceIsAnError) {
  try {
    cuda::make_device(cuda::count());
    FAIL() << "a device beyond the last was made";
  } catch (const MachineError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(cuda::count())), std::string::npos);
  }
}

}  // namespace
}  // namespace machine
