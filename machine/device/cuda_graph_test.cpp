// Graphs of a CUDA device: captured work, its order, and the calls that a capture forbids.

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/testing/full_device.h"

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

// Memory of a graph is not used by others while the graph exists: later tensors would change.
TEST_F(CudaGraphs, AGraphKeepsTheMemoryThatItAllocated) {
  const Tensor sum = tensor(0), one = tensor(1);
  Tensor kept;
  auto graph = stream().capture([&] {
    for (int i = 0; i < 3; ++i) {
      const Tensor part{*device_, Dtype::float32, {1000}, Category::buffers};
      kernels().scale(one, 10, part);
      kernels().add(sum, part, sum);
    }
    kept = Tensor{*device_, Dtype::float32, {1000}, Category::buffers};
    stream().copy(kept.data(), sum.data(), sum.bytes());
  });
  std::vector<Tensor> later;
  for (int i = 0; i < 8; ++i) later.push_back(tensor(5));
  for (int launch = 1; launch <= 3; ++launch) {
    graph->launch();
    expect_all(sum, 30 * launch);
    expect_all(kept, 30 * launch);
  }
  for (const Tensor& other : later) expect_all(other, 5);
  graph.reset();
  expect_all(kept, 90);
  later.push_back(tensor(7));
  expect_all(kept, 90);
}

TEST_F(CudaGraphs, AFreedBlockIsTakenAgainInTheCapture) {
  const Tensor one = tensor(1);
  std::set<const void*> places;
  const auto other = device_->make_stream();
  enum class User { own, other, other_and_joins };
  const auto take = [&](User user) {
    const Tensor part{*device_, Dtype::float32, {1000}, Category::buffers};
    places.insert(part.data());
    if (user == User::own) return kernels().scale(one, 2, part);
    const auto ready = stream().record();
    other->wait(*ready);
    other->kernels().scale(one, 2, part);
    if (user == User::other_and_joins) stream().wait(*other->record());
  };
  const auto blocks_of = [&](const std::vector<User>& users) {
    places.clear();
    const auto graph = stream().capture([&] {
      for (const User user : users) take(user);
      stream().wait(*other->record());
    });
    return places.size();
  };
  const User own = User::own, shared = User::other, joins = User::other_and_joins;
  EXPECT_EQ(blocks_of({shared, own, own, own}), 2);  // the other stream may still write the first
  EXPECT_EQ(blocks_of({shared, shared, shared}), 3);
  EXPECT_EQ(blocks_of({joins, joins, joins, joins}), 2);  // each is joined by the next
  EXPECT_EQ(blocks_of({shared, joins, own, own}), 2);
}

// The graph writes memory that its owner frees in the capture, so nobody else may have it.
TEST_F(CudaGraphs, MemoryThatIsFreedInACaptureStaysTheGraphs) {
  Tensor before = tensor(1);
  const Tensor out = tensor(0);
  const void* const place = before.data();
  auto graph = stream().capture([&] {
    kernels().fill(before, 4);
    stream().copy(out.data(), before.data(), out.bytes());
    before = Tensor();
  });
  std::vector<Tensor> later;
  for (int i = 0; i < 8; ++i) later.push_back(tensor(5));
  for (const Tensor& other : later) EXPECT_NE(other.data(), place);
  graph->launch();
  expect_all(out, 4);
  for (const Tensor& other : later) expect_all(other, 5);
  graph.reset();
  bool found = false;
  for (int i = 0; i < 8; ++i) {
    later.push_back(tensor(6));
    found = found || later.back().data() == place;
  }
  EXPECT_TRUE(found);
}

// Nothing else is left, so the graph gets an order that it did not need.
TEST_F(CudaGraphs, ExhaustedMemoryIsTakenAgainInOrder) {
  const auto other = device_->make_stream();
  const Tensor to = tensor(0), ones = tensor(1), twos = tensor(2);
  const auto graph = stream().capture([&] {
    std::vector<Memory> all = fill_device(*device_, gibibyte);
    stream().copy(all.back().data(), ones.data(), ones.bytes());
    other->wait(*stream().record());
    other->copy(to.data(), all.back().data(), to.bytes());
    all.pop_back();
    all.push_back(device_->allocate(gibibyte, Category::buffers));
    stream().copy(all.back().data(), twos.data(), twos.bytes());
    stream().wait(*other->record());
  });
  graph->launch();
  expect_all(to, 1);
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
