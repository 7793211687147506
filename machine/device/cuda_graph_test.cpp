// Graphs of a CUDA device: captured work, its order, and the calls that a capture forbids.

#include <gtest/gtest.h>

#include <stdexcept>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"

namespace machine {
namespace {

class CudaGraphs : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
    device_ = cuda::make_device(0);
  }
  Tensor tensor(double value) {
    const Tensor made{*device_, Dtype::float32, {1000}, Category::buffers};
    kernels().fill(made, value);
    device_->stream().synchronize();
    return made;
  }
  Stream& stream() { return device_->stream(); }
  Kernels& kernels() { return stream().kernels(); }
  static void expect_all(const Tensor& tensor, double value) {
    for (const double element : to_doubles(tensor)) ASSERT_EQ(element, value);
  }
  std::unique_ptr<Device> device_;
};

TEST(Graphs, TheHostHasNone) {
  const auto host = make_host_device();
  bool called = false;
  EXPECT_EQ(host->stream().capture([&] { called = true; }), nullptr);
  EXPECT_FALSE(called);
}

TEST_F(CudaGraphs, EveryLaunchRepeatsTheWork) {
  const Tensor sum = tensor(0), one = tensor(1), copy = tensor(0);
  const auto graph = stream().capture([&] {
    kernels().add(sum, one, sum);
    stream().copy(copy.data(), sum.data(), sum.bytes());
  });
  ASSERT_TRUE(graph);
  expect_all(sum, 0);
  for (int launch = 0; launch < 3; ++launch) graph->launch();
  expect_all(copy, 3);
  kernels().fill(one, 10);  // the graph reads the memory as it is
  graph->launch();
  expect_all(copy, 13);
}

// Without the waits, the copy would be of an old sum, or the sum would change during the copy.
TEST_F(CudaGraphs, EventsOrderStreamsInAGraph) {
  const auto other = device_->make_stream();
  const Tensor sum = tensor(0), one = tensor(1), copy = tensor(0);
  const auto graph = stream().capture([&] {
    kernels().add(sum, one, sum);
    const auto added = stream().record();
    other->wait(*added);
    other->copy(copy.data(), sum.data(), sum.bytes());
    const auto copied = other->record();
    stream().wait(*copied);
    kernels().add(sum, one, sum);
  });
  for (int launch = 1; launch <= 3; ++launch) {
    graph->launch();
    expect_all(copy, 2 * launch - 1);
    expect_all(sum, 2 * launch);
  }
}

TEST_F(CudaGraphs, AFailedCaptureLeavesTheStreamUsable) {
  const Tensor sum = tensor(0), one = tensor(1);
  EXPECT_THROW(stream().capture([] { throw std::runtime_error("stop"); }), std::runtime_error);
  const auto waits = [&] {
    kernels().add(sum, one, sum);
    stream().synchronize();
  };
  EXPECT_THROW(stream().capture(waits), MachineError);
  const auto other = device_->make_stream();
  const auto outside = other->record();
  EXPECT_THROW(stream().capture([&] { stream().wait(*outside); }), MachineError);
  kernels().add(sum, one, sum);
  expect_all(sum, 1);
}

}  // namespace
}  // namespace machine
