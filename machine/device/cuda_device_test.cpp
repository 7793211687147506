// Streams, events, gates and memory of a CUDA device.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/device/tensor.h"
#include "machine/testing/full_device.h"
#include "machine/testing/pageable_copies.h"
#ifdef SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/errors.h"
#endif

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

TEST_F(CudaDevice, HasComputeUnits) {
  const ComputeUnits units = device_->compute_units();
  EXPECT_NE(device_->description().find(
                fmt::format(", {} SM at {:.0f} MHz", units.multiprocessors, units.clock_hz / 1e6)),
            std::string::npos)
      << device_->description();
  EXPECT_NE(device_->description().find(units.product), std::string::npos) << units.product;
  EXPECT_EQ(units.compute_capability, device_->compute_capability());
  EXPECT_GE(units.multiprocessors, 1);
  EXPECT_GE(units.clock_hz, 100e6);  // not kHz
  EXPECT_LE(units.clock_hz, 10e9);
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

TEST_F(CudaDevice, CopiesRows) {
  const Tensor from{*device_, Dtype::float32, {7, 5}, Category::buffers};
  const Tensor to{*device_, Dtype::float32, {7, 3}, Category::buffers};
  std::vector<double> values, expected;
  for (int i = 0; i < 35; ++i) values.push_back(i);
  for (int row = 0; row < 7; ++row)
    for (const int value : {5 * row + 1, 5 * row + 2, -1}) expected.push_back(value);
  from_doubles(from, values);
  device_->stream().kernels().fill(to, -1);
  device_->stream().copy_rows(to.data(), 12, from.as<float>() + 1, 20, 8, 7);
  EXPECT_EQ(to_doubles(to), expected);
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
  // CUDA loads a kernel at its first launch, which waits for the device: not behind a closed gate.
  device_->stream().kernels().fill(held, -1);
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

// With a second stream, and after it has ended.
TEST_F(CudaDevice, FreeingDoesNotWaitForStreams) {
  const auto gate = device_->make_gate(2);
  auto other = device_->make_stream();
  for (int round = 0; round < 2; ++round) {
    const Tensor held = tensor(1000);
    gate->close();
    {
      const Tensor freed = tensor(1000);
      device_->stream().kernels().fill(freed, 1);
      const auto filled = device_->stream().record();
      if (other) other->wait(*filled);
    }
    device_->stream().kernels().fill(held, round);
    gate->open();
    device_->stream().synchronize();
    EXPECT_TRUE(gate->held()) << round;
    expect_all(held, round);
    other.reset();
  }
}

// A copy in another stream reads memory that is freed before the copy runs.
TEST_F(CudaDevice, FreedMemoryIsNotReusedWhileAStreamUsesIt) {
  constexpr std::int64_t elements = 1'000'000;
  const auto other = device_->make_stream();
  const Tensor to = tensor(elements);
  Tensor from = tensor(elements);
  const void* const place = from.data();
  const Tensor behind = tensor(elements);  // so that `from` leaves a hole of its size
  device_->stream().kernels().fill(from, 1);
  device_->stream().synchronize();
  other->copy(to.data(), from.data(), from.bytes());
  from = Tensor();
  const Tensor next = tensor(elements);
  device_->stream().kernels().fill(next, 2);
  device_->stream().synchronize();
  other->synchronize();
  expect_all(to, 1);
  if (next.data() != place) EXPECT_EQ(tensor(elements).data(), place);
}

TEST_F(CudaDevice, ExhaustedMemoryIsReusedInOrder) {
  const auto other = device_->make_stream();
  const Tensor to = tensor(1000);
  std::vector<Memory> all = fill_device(*device_, gibibyte);
  ASSERT_FALSE(all.empty());
  std::vector<float> ones(1000, 1), twos(1000, 2);
  device_->stream().copy(all.back().data(), ones.data(), to.bytes());
  device_->stream().synchronize();
  other->copy(to.data(), all.back().data(), to.bytes());
  all.pop_back();
  all.push_back(device_->allocate(gibibyte, Category::buffers));
  device_->stream().copy(all.back().data(), twos.data(), to.bytes());
  device_->stream().synchronize();
  other->synchronize();
  expect_all(to, 1);
}

TEST_F(CudaDevice, UnusedArenasMakeRoomForALargeTensor) {
  const std::size_t arenas = fill_device(*device_, gibibyte).size();
  ASSERT_GE(arenas, 2u);
  EXPECT_EQ(device_->allocate(arenas * gibibyte, Category::buffers).bytes(), arenas * gibibyte);
}

TEST_F(CudaDevice, HostMemoryBesideItIsPinnedUnlessPageable) {
  if (!pageable_copies()) GTEST_SKIP() << "only the virtual GPU counts copies of pageable memory";
  const Tensor here = tensor(1000);
  for (const Pages pages : {Pages::pinned, Pages::pageable}) {
    const auto host = make_host_device_beside(*device_, pages);
    const Tensor there(*host, Dtype::float32, {1000}, Category::buffers);
    const std::uint64_t before = *pageable_copies();
    device_->stream().copy(there.data(), here.data(), here.bytes());
    device_->stream().copy(here.data(), there.data(), here.bytes());
    device_->stream().synchronize();
    EXPECT_EQ(*pageable_copies() - before, pages == Pages::pinned ? 0u : 2u);
  }
}

// The host writes its new memory at once.
TEST_F(CudaDevice, PinnedMemoryIsNotReusedWhileACopyReadsIt) {
  constexpr std::int64_t elements = 1000;
  const auto host = make_host_device_beside(*device_);
  const auto on_host = [&](float value) {
    Tensor made(*host, Dtype::float32, {elements}, Category::buffers);
    host->stream().kernels().fill(made, value);
    return made;
  };
  const Tensor first = tensor(elements), second = tensor(elements);
  device_->stream().copy(first.data(), on_host(1).data(), first.bytes());
  device_->stream().copy(second.data(), on_host(2).data(), first.bytes());
  expect_all(first, 1);
  expect_all(second, 2);
}

TEST_F(CudaDevice, PinsMemoryOfTheHost) {
  if (!pageable_copies()) GTEST_SKIP() << "only the virtual GPU counts copies of pageable memory";
  constexpr std::size_t bytes = 8192;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const std::unique_ptr<void, Free> pages(std::aligned_alloc(4096, bytes));
  const Tensor here = tensor(bytes / 4);
  const auto copies = [&] {
    const std::uint64_t before = *pageable_copies();
    device_->stream().copy(pages.get(), here.data(), bytes);
    device_->stream().synchronize();
    return *pageable_copies() - before;
  };
  {
    const auto pinned = device_->pin(pages.get(), bytes);
    EXPECT_EQ(copies(), 0u);
    EXPECT_THROW(device_->pin(pages.get(), bytes), MachineError);
  }
  EXPECT_EQ(copies(), 1u);
}

#ifdef SHARDMARK_VIRTUAL_GPU
// Tensors before and behind it are not changed.
TEST_F(CudaDevice, AKernelThatRunsPastATensorFails) {
  const Tensor before = tensor(1024), used = tensor(1024), behind = tensor(1024);
  for (const Tensor& each : {before, used, behind}) device_->stream().kernels().fill(each, 6);
  device_->stream().synchronize();
  device_->stream().kernels().divide(Dtype::float32, used.data(), used.size() + 1, 2);
  EXPECT_THROW(device_->stream().synchronize(), MachineError);
  virtual_gpu::mend_device(0);
  expect_all(before, 6);
  expect_all(behind, 6);
}
#endif

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
