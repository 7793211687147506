#include <atomic>
#include <cstdint>

#include "machine/device/cuda/ptx.cuh"
#include "machine/device/cuda/runtime.h"
#include "machine/device/device_wait.h"

namespace machine::cuda {
namespace {

// Words in host memory that the device reads and writes.
struct Words {
  std::uint32_t opened;  // written by the host: number of the last opened gate
  std::uint32_t missed;  // written by the device: number of the last gate that missed its deadline
};

// The device measures the time from the start of the kernel. A kernel behind it must have run
// before: CUDA loads it at its first launch, which waits for the device.
__global__ void hold(volatile Words* words, std::uint32_t number, std::uint64_t deadline_ns) {
  const std::uint64_t begin = global_timer_ns();
  while (words->opened != number) {
    if (global_timer_ns() - begin > deadline_ns) {
      words->missed = number;
      __threadfence_system();
      return;
    }
    __nanosleep(100);
  }
}

class CudaGate final : public Gate {
 public:
  CudaGate(const Queue& queue, double deadline_s)
      : owner_(queue.owner),
        device_(queue.device),
        stream_(queue.stream),
        deadline_ns_(static_cast<std::uint64_t>(deadline_s * 1e9)) {
    make_current(device_);
    void* memory = nullptr;
    SHARDMARK_CUDA(device_, cudaHostAlloc(&memory, sizeof(Words), cudaHostAllocMapped));
    words_ = static_cast<Words*>(memory);
    *words_ = {};
    void* seen = nullptr;
    const cudaError_t status = cudaHostGetDevicePointer(&seen, memory, 0);
    if (status != cudaSuccess) {
      cudaFreeHost(memory);
      fail(device_, "cudaHostGetDevicePointer", status);
    }
    on_device_ = static_cast<Words*>(seen);
  }
  // Opens the gate and waits, because the stream may still run a kernel that reads the words.
  ~CudaGate() override {
    const DeviceWait waits(owner_);
    cudaSetDevice(device_);
    open();
    cudaStreamSynchronize(stream_);
    cudaFreeHost(words_);
  }
  CudaGate(const CudaGate&) = delete;
  CudaGate& operator=(const CudaGate&) = delete;

  void close() override {
    make_current(device_);
    SHARDMARK_LAUNCH(hold, 1, 1, 0, stream_, on_device_, ++number_, deadline_ns_);
    check(device_, "the kernel that holds a stream", cudaGetLastError());
  }
  void open() override {
    std::atomic_ref<std::uint32_t>(words_->opened).store(number_, std::memory_order_release);
  }
  bool held() override {
    return std::atomic_ref<std::uint32_t>(words_->missed).load(std::memory_order_acquire) !=
           number_;
  }

 private:
  const Device& owner_;
  int device_;
  cudaStream_t stream_;
  std::uint64_t deadline_ns_;
  Words* words_ = nullptr;
  Words* on_device_ = nullptr;
  std::uint32_t number_ = 0;
};

}  // namespace

std::unique_ptr<Gate> make_gate(const Queue& queue, double deadline_s) {
  return std::make_unique<CudaGate>(queue, deadline_s);
}

}  // namespace machine::cuda
