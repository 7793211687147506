// Streams, events, gates and memory of a CUDA device.

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace machine {
namespace {

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
    device_ = cuda::make_device(0);
  }
  Tensor tensor(std::int64_t elements) {
    return {*device_, Dtype::float32, {elements}, Category::buffers};
  }
  static void expect_all(const Tensor& tensor, double value) {
    for (const double element : to_doubles(tensor)) ASSERT_EQ(element, value);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDevice, HasADescriptionAndAnIdentity) {
  EXPECT_EQ(device_->description().rfind("cuda:0: ", 0), 0u) << device_->description();
  EXPECT_NE(device_->identity(), 0u);
  EXPECT_FALSE(device_->readable_by_host());
}

TEST_F(CudaDevice, EventsOrderStreams) {
  const auto other = device_->make_stream();
  const Tensor from = tensor(10'000), to = tensor(10'000);
  for (int round = 0; round < 10; ++round) {
    device_->stream().kernels().fill(from, round);
    const auto filled = device_->stream().record();
    other->wait(*filled);
    other->copy(to.data(), from.data(), from.bytes());
    const auto copied = other->record();
    device_->stream().wait(*copied);
    expect_all(to, round);
  }
}

TEST_F(CudaDevice, EventsMeasureTime) {
  const Tensor filled = tensor(100'000);
  const auto begin = device_->stream().record();
  device_->stream().kernels().fill(filled, 1);
  const auto end = device_->stream().record();
  end->synchronize();
  EXPECT_GT(end->seconds_since(*begin), 0);
}

TEST_F(CudaDevice, AGateHoldsItsStreamUntilItOpens) {
  const auto gate = device_->make_gate(30);
  const Tensor held = tensor(1000);
  for (int round = 0; round < 3; ++round) {
    gate->close();
    device_->stream().kernels().fill(held, round);
    gate->open();
    device_->stream().synchronize();
    EXPECT_TRUE(gate->held());
    expect_all(held, round);
  }
}

TEST_F(CudaDevice, AGateOpensAtItsDeadline) {
  const auto gate = device_->make_gate(0.05);
  const Tensor held = tensor(1000);
  const auto begin = std::chrono::steady_clock::now();
  gate->close();
  device_->stream().kernels().fill(held, 3);
  device_->stream().synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  EXPECT_FALSE(gate->held());
  expect_all(held, 3);
}

TEST_F(CudaDevice, MemoryIsReusedInStreamOrder) {
  std::vector<Tensor> kept;
  for (int i = 0; i < 20; ++i) {
    const Tensor temporary = tensor(100'000);
    device_->stream().kernels().fill(temporary, i);
    kept.push_back(tensor(1000));
    device_->stream().copy(kept.back().data(), temporary.data(), kept.back().bytes());
  }
  for (int i = 0; i < 20; ++i) expect_all(kept[static_cast<std::size_t>(i)], i);
}

TEST_F(CudaDevice, ExhaustedMemoryIsReported) {
  EXPECT_THROW(device_->allocate(std::size_t{1} << 50, Category::buffers), MachineError);
  expect_all(
      [this] {
        const Tensor after = tensor(10);
        device_->stream().kernels().fill(after, 1);
        return after;
      }(),
      1);
}

}  // namespace
}  // namespace machine
