// A CUDA device that is used from another thread. A thread that has chosen no device works on
// device 0, so each call must choose the device of its object.

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <thread>

#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace machine {
namespace {

class CudaThreads : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::count() < 2) GTEST_SKIP() << "fewer than 2 CUDA devices";
    device_ = cuda::make_device(1);
  }
  Tensor filled(std::int64_t elements, double value) {
    const Tensor made(*device_, Dtype::float32, {elements}, Category::buffers);
    device_->stream().kernels().fill(made, value);
    return made;
  }
  // Runs the work in a new thread and rethrows its error.
  static void in_a_thread(const std::function<void()>& work) {
    std::exception_ptr error;
    std::thread([&] {
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
  }
  static void expect_all(const Tensor& tensor, double value) {
    for (const double element : to_doubles(tensor)) ASSERT_EQ(element, value);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(CudaThreads, KernelsRunOnTheDeviceOfTheirStream) {
  const Tensor values = filled(1000, 1);
  in_a_thread([&] { device_->stream().kernels().fill(values, 2); });
  expect_all(values, 2);
}

TEST_F(CudaThreads, MemoryIsAllocatedOnItsDevice) {
  Tensor made;
  in_a_thread([&] {
    made = Tensor(*device_, Dtype::float32, {100'000}, Category::buffers);
    device_->stream().kernels().fill(made, 3);
  });
  expect_all(made, 3);
}

TEST_F(CudaThreads, StreamsAndEventsBelongToTheDevice) {
  const Tensor from = filled(1000, 4), to = filled(1000, 0);
  in_a_thread([&] {
    const auto other = device_->make_stream();
    const auto begin = device_->stream().record();
    other->wait(*begin);
    other->copy(to.data(), from.data(), from.bytes());
    const auto end = other->record();
    device_->stream().wait(*end);
    device_->stream().synchronize();
  });
  expect_all(to, 4);
}

// The first call of the thread.
TEST_F(CudaThreads, AnEventIsOfTheDeviceOfItsStream) {
  const Tensor values = filled(1000, 6);
  in_a_thread([&] { device_->stream().record()->synchronize(); });
  expect_all(values, 6);
}

TEST_F(CudaThreads, GatesHoldTheStreamOfTheDevice) {
  const Tensor values = filled(1000, 0);
  in_a_thread([&] {
    const auto gate = device_->make_gate(30);
    gate->close();
    device_->stream().kernels().fill(values, 5);
    gate->open();
    device_->stream().synchronize();
    EXPECT_TRUE(gate->held());
  });
  expect_all(values, 5);
}

}  // namespace
}  // namespace machine
