// The order of copies of chunks and of the work of the device's stream, on each kind of device.

#include "layers/context_parallel/splits/chunk_offload.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "machine/device/kernels.h"

namespace layers {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

constexpr std::int64_t elements = 1000;

class ChunkOffloadOn : public ::testing::TestWithParam<machine::Device::Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == machine::Device::Kind::host) {
      device_ = machine::make_host_device();
    } else {
      if (machine::cuda::count() == 0) GTEST_SKIP() << "no CUDA device";
      device_ = machine::cuda::make_device(0);
    }
    host_ = machine::make_host_device_beside(*device_);
    offload_ = std::make_unique<ChunkOffload>(*device_, host_.get());
  }
  void fill(const Tensor& tensor, double value) const {
    device_->stream().kernels().fill(tensor, value);
  }
  Tensor on_device(double value) const {
    Tensor made(*device_, Dtype::float32, {elements}, Category::buffers);
    fill(made, value);
    device_->stream().synchronize();
    return made;
  }
  Tensor on_host(double value) const {
    Tensor made = offload_->make(Dtype::float32, {elements}, Category::activations);
    host_->stream().kernels().fill(made, value);
    return made;
  }
  static std::vector<double> all(double value) { return std::vector<double>(elements, value); }

  std::unique_ptr<machine::Device> device_, host_;
  std::unique_ptr<ChunkOffload> offload_;
};

TEST_P(ChunkOffloadOn, StoresAfterTheWorkThatWrites) {
  const Tensor chunk = on_device(1), kept = on_host(0);
  fill(chunk, 2);
  offload_->store(chunk, kept);
  offload_->record()->synchronize();  // of the copies only
  EXPECT_EQ(to_doubles(kept), all(2));
  EXPECT_EQ(offload_->copied().to_host, elements * sizeof(float));
}

TEST_P(ChunkOffloadOn, FetchesAfterTheWorkThatReads) {
  const Tensor chunk = on_device(1), read = on_device(0), kept = on_host(2);
  device_->stream().copy(read.data(), chunk.data(), chunk.bytes());
  offload_->fetch(kept, chunk);
  offload_->record()->synchronize();
  EXPECT_EQ(to_doubles(read), all(1));
  EXPECT_EQ(to_doubles(chunk), all(2));
}

TEST_P(ChunkOffloadOn, ReadsChunksInTurnThroughTwoSets) {
  std::vector<Tensor> kept;
  for (int chunk = 0; chunk < 5; ++chunk) kept.push_back(on_host(chunk));
  ChunkReader reader(*offload_, 5, {{Dtype::float32, elements}});
  const std::size_t before = device_->ledger().current(Category::buffers);
  std::vector<Tensor> sums;
  reader.start({{kept[0]}});
  for (std::size_t chunk = 0; chunk < 5; ++chunk) {
    if (chunk + 1 < 5) reader.start({{kept[chunk + 1]}});
    const Tensor read = reader.finish().front();
    sums.push_back(Tensor(*device_, Dtype::float32, {elements}, Category::optimizer));
    device_->stream().copy(sums.back().data(), read.data(), read.bytes());
  }
  for (std::size_t chunk = 0; chunk < 5; ++chunk)
    EXPECT_EQ(to_doubles(sums[chunk]), all(static_cast<double>(chunk)));
  EXPECT_EQ(device_->ledger().peak(Category::buffers), before);
  EXPECT_EQ(before, 2 * elements * sizeof(float));
}

TEST_P(ChunkOffloadOn, WithoutAHostChunksStayInPlace) {
  ChunkOffload in_place(*device_, nullptr);
  const Tensor chunk = on_device(3), kept = in_place.make(Dtype::float32, {4}, Category::buffers);
  EXPECT_EQ(&kept.device(), device_.get());
  ChunkReader reader(in_place, 2, {{Dtype::float32, elements}});
  reader.start({{chunk}});
  EXPECT_EQ(reader.finish().front().data(), chunk.data());
  EXPECT_EQ(in_place.copied().to_host + in_place.copied().to_device, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    , ChunkOffloadOn, ::testing::Values(machine::Device::Kind::host, machine::Device::Kind::cuda),
    [](const auto& info) { return info.param == machine::Device::Kind::host ? "host" : "cuda"; });

}  // namespace
}  // namespace layers
