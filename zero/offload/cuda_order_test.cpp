// The order of an offloaded update and of the work that a CUDA device has queued. Nothing waits for
// the device's stream before the update.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "zero/offload/streamed_optimizer.h"
#include "zero/optimizers/optimizer.h"

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

constexpr std::int64_t elements = 1000;

class CudaOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
    device_ = machine::cuda::make_device(0);
    host_ = machine::make_host_device_beside(*device_);
  }
  Tensor filled(double value) const {
    const Tensor made(*device_, Dtype::float32, {elements}, Category::parameters);
    device_->stream().kernels().fill(made, value);
    device_->stream().synchronize();
    return made;
  }
  std::unique_ptr<StreamedOptimizer> streamed(const Tensor& values, bool delayed = false) const {
    StateOptions options;
    options.cpu.delayed_update = delayed;
    options.device = OffloadDevice::cpu;
    options.cpu.piece_size = 300;
    return std::make_unique<StreamedOptimizer>(AdamW{}, values, decays_, *host_, options);
  }
  const std::vector<std::uint8_t> decays_ = std::vector<std::uint8_t>(elements, 1);
  std::unique_ptr<machine::Device> device_, host_;
};

TEST_F(CudaOrder, GradientsGoDownAfterTheWorkThatWritesThem) {
  const Tensor values = filled(2), others = filled(2), gradient = filled(0), same = filled(0);
  Optimizer in_memory(AdamW{}, values, decays_);
  const auto offloaded = streamed(others);
  for (int step = 1; step <= 3; ++step) {
    device_->stream().kernels().fill(gradient, step);
    offloaded->update(gradient, 1);
    device_->stream().kernels().fill(same, step);
    in_memory.update(same, 1);
    EXPECT_EQ(hash(others), hash(values)) << step;
  }
}

TEST_F(CudaOrder, ValuesComeUpAfterTheWorkThatReadsThem) {
  const Tensor values = filled(2), gradient = filled(1), read = filled(0);
  const auto offloaded = streamed(values);
  device_->stream().copy(read.data(), values.data(), read.bytes());
  offloaded->update(gradient, 1);
  for (const double value : to_doubles(read)) ASSERT_EQ(value, 2);
  for (const double value : to_doubles(values)) ASSERT_NE(value, 2);
}

// They come up before any gradients go down, whose stream waits for the device's.
TEST_F(CudaOrder, DelayedValuesComeUpAfterTheWorkThatReadsThem) {
  const Tensor values = filled(2), gradient = filled(1), read = filled(0);
  const auto offloaded = streamed(values, true);
  offloaded->update(gradient, 1);
  device_->stream().copy(read.data(), values.data(), read.bytes());
  offloaded->drain();
  for (const double value : to_doubles(read)) ASSERT_EQ(value, 2);
  for (const double value : to_doubles(values)) ASSERT_NE(value, 2);
}

}  // namespace
}  // namespace zero
