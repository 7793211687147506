// The runtime compared with CUDA's documentation: streams, events, memory, launches, errors.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/kernel_language.h"

namespace machine::virtual_gpu {
namespace {

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

// A stream, device memory and pinned host memory for some numbers.
class Runtime : public testing::Test {
 protected:
  static constexpr int count = 1000;
  static constexpr std::size_t bytes = count * sizeof(int);

  void SetUp() override {
    EXPECT_CUDA(cudaSetDevice(0));
    for (cudaStream_t& stream : streams_)
      EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int*& memory : device_) EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory), bytes));
    EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&host_), bytes, cudaHostAllocDefault));
    std::memset(host_, 0, bytes);
  }
  void TearDown() override {
    mend_device(0);
    mend_device(1);
    EXPECT_CUDA(cudaSetDevice(0));
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamDestroy(stream));
    for (int* memory : device_) EXPECT_CUDA(cudaFree(memory));
    EXPECT_CUDA(cudaFreeHost(host_));
    cudaGetLastError();
  }
  static void fill(int* out, int value) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) out[i] = value;
  }
  static void add(int* out, const int* in) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) out[i] += in[i];
  }
  void queue_fill(int which, int value, cudaStream_t stream) {
    SHARDMARK_LAUNCH(fill, 4, 256, 0, stream, device_[which], value);
    EXPECT_CUDA(cudaGetLastError());
  }
  // Copies device memory to the host in that stream, and returns its first number.
  int read(int which, cudaStream_t stream) {
    EXPECT_CUDA(cudaMemcpyAsync(host_, device_[which], bytes, cudaMemcpyDefault, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    for (int i = 1; i < count; ++i) EXPECT_EQ(host_[i], host_[0]);
    return host_[0];
  }

  cudaStream_t streams_[2];
  int* device_[2];
  int* host_;
};

TEST_F(Runtime, AStreamRunsInOrder) {
  queue_fill(0, 1, streams_[0]);
  queue_fill(1, 41, streams_[0]);
  SHARDMARK_LAUNCH(add, 4, 256, 0, streams_[0], device_[0], device_[1]);
  EXPECT_EQ(read(0, streams_[0]), 42);
  EXPECT_CUDA(cudaStreamQuery(streams_[0]));
}

TEST_F(Runtime, LazyWorkRunsWhenItIsAwaited) {
  if (configuration().order != Order::lazy) GTEST_SKIP() << "another order";
  queue_fill(0, 1, streams_[0]);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  queue_fill(0, 2, streams_[1]);
  // No event orders the streams, so the second kernel runs first.
  EXPECT_EQ(read(0, streams_[1]), 2);
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  EXPECT_EQ(read(0, streams_[0]), 1);
}

TEST_F(Runtime, AnEventOrdersStreams) {
  cudaEvent_t event;
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  queue_fill(0, 1, streams_[0]);
  EXPECT_CUDA(cudaEventRecord(event, streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], event, 0));
  queue_fill(1, 10, streams_[1]);
  SHARDMARK_LAUNCH(add, 4, 256, 0, streams_[1], device_[1], device_[0]);
  EXPECT_EQ(read(1, streams_[1]), 11);
  EXPECT_CUDA(cudaEventDestroy(event));
}

// A later record does not change an earlier wait, and a wait for an unrecorded event is empty.
TEST_F(Runtime, AWaitIsForTheStateAtTheCall) {
  cudaEvent_t event;
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], event, 0));
  EXPECT_CUDA(cudaEventRecord(event, streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], event, 0));
  queue_fill(0, 3, streams_[0]);
  EXPECT_CUDA(cudaEventRecord(event, streams_[0]));
  EXPECT_CUDA(cudaStreamSynchronize(streams_[1]));
  if (configuration().order == Order::lazy) {
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  }
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventQuery(event));
  EXPECT_CUDA(cudaEventDestroy(event));
}

TEST_F(Runtime, EventsMeasureTimeBetweenRecords) {
  cudaEvent_t begin, end, plain;
  float milliseconds = 0;
  EXPECT_CUDA(cudaEventCreate(&begin));
  EXPECT_CUDA(cudaEventCreate(&end));
  EXPECT_CUDA(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_CUDA(cudaEventRecord(begin, streams_[0]));
  queue_fill(0, 1, streams_[0]);
  EXPECT_CUDA(cudaEventRecord(end, streams_[0]));
  if (configuration().order == Order::lazy) {
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  }
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  EXPECT_GE(milliseconds, 0);
  EXPECT_CUDA(cudaEventRecord(plain, streams_[0]));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, plain), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventCreateWithFlags(&plain, cudaEventInterprocess), cudaErrorInvalidValue);
  EXPECT_CUDA(cudaEventDestroy(begin));
  EXPECT_EQ(cudaEventRecord(begin, streams_[0]), cudaErrorInvalidResourceHandle);
}

TEST_F(Runtime, TheDefaultStreamIsOrderedWithBlockingStreams) {
  cudaStream_t blocking;
  EXPECT_CUDA(cudaStreamCreate(&blocking));
  queue_fill(0, 1, blocking);
  queue_fill(1, 2, nullptr);
  SHARDMARK_LAUNCH(add, 4, 256, 0, nullptr, device_[1], device_[0]);
  queue_fill(0, 5, blocking);
  SHARDMARK_LAUNCH(add, 4, 256, 0, blocking, device_[0], device_[1]);
  EXPECT_EQ(read(0, blocking), 8);
  EXPECT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(Runtime, CopiesStayInTheirAllocation) {
  std::vector<int> pageable(count + 1, 7);
  EXPECT_CUDA(cudaMemcpyAsync(device_[0], pageable.data(), bytes, cudaMemcpyDefault, streams_[0]));
  EXPECT_EQ(read(0, streams_[0]), 7);
  EXPECT_EQ(cudaMemcpyAsync(device_[0], pageable.data(), bytes + 4, cudaMemcpyDefault, streams_[0]),
            cudaErrorInvalidValue);
  const std::string text = cudaGetErrorString(cudaGetLastError());
  EXPECT_NE(text.find("a copy to of 4004 bytes at offset 0 of allocation"), std::string::npos)
      << text;
  EXPECT_EQ(cudaMemcpyAsync(host_, device_[0] + count - 1, 8, cudaMemcpyDefault, streams_[0]),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host_, device_[0], bytes, cudaMemcpyHostToDevice, streams_[0]),
            cudaErrorInvalidMemcpyDirection);
}

TEST_F(Runtime, RowsStayInTheirAllocation) {
  std::vector<int> pageable(count);
  for (int i = 0; i < count; ++i) pageable[static_cast<std::size_t>(i)] = i;
  std::vector<int> got(count, -1);
  EXPECT_CUDA(cudaMemcpyAsync(device_[0], pageable.data(), bytes, cudaMemcpyDefault, streams_[0]));
  // The second and third of five columns become the first two of three.
  EXPECT_CUDA(
      cudaMemcpy2DAsync(got.data(), 12, device_[0] + 1, 20, 8, 4, cudaMemcpyDefault, streams_[0]));
  EXPECT_CUDA(cudaStreamSynchronize(streams_[0]));
  got.resize(12);
  EXPECT_EQ(got, (std::vector{1, 2, -1, 6, 7, -1, 11, 12, -1, 16, 17, -1}));
  EXPECT_EQ(cudaMemcpy2DAsync(got.data(), 4, device_[0], 8, 8, 1, cudaMemcpyDefault, streams_[0]),
            cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaMemcpy2DAsync(got.data(), 8, device_[0] + count - 4, 12, 8, 2, cudaMemcpyDefault,
                              streams_[0]),
            cudaErrorInvalidValue);
}

TEST_F(Runtime, FreedMemoryIsNotUsed) {
  void* freed = nullptr;
  EXPECT_CUDA(cudaMalloc(&freed, bytes));
  EXPECT_CUDA(cudaFree(freed));
  EXPECT_EQ(cudaMemcpyAsync(host_, freed, 8, cudaMemcpyDefault, streams_[0]),
            cudaErrorInvalidValue);
  const std::string text = cudaGetErrorString(cudaGetLastError());
  EXPECT_NE(text.find("freed allocation"), std::string::npos) << text;
  EXPECT_EQ(cudaFree(freed), cudaErrorInvalidValue);
  void* next = nullptr;
  EXPECT_CUDA(cudaMalloc(&next, bytes));
  EXPECT_NE(next, freed);
  EXPECT_CUDA(cudaFree(next));
}

TEST_F(Runtime, MemoryIsLimitedAndNotCleared) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, configuration().memory + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(read(0, streams_[0]), -1);
}

using RuntimeDeathTest = Runtime;
TEST_F(RuntimeDeathTest, HostCodeCannotTouchDeviceMemory) {
  testing::FLAGS_gtest_death_test_style = "fast";
  if (configuration().order == Order::eager) GTEST_SKIP() << "another thread may open the memory";
  EXPECT_DEATH(device_[0][3] = 1, "host code accesses .*, at offset 12 of allocation");
}

TEST_F(Runtime, KernelsFaultOutsideOfTheirMemory) {
  SHARDMARK_LAUNCH(fill, 4, 256, 0, streams_[0], device_[0] + count, 1);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorIllegalAddress);
  const std::string text = cudaGetErrorString(cudaErrorIllegalAddress);
  EXPECT_NE(text.find("fill, block ("), std::string::npos) << text;
  EXPECT_NE(text.find("allocation"), std::string::npos) << text;
  // The error is sticky.
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(streams_[1]), cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorIllegalAddress);
}

TEST_F(Runtime, KernelsTakeNoPageableMemory) {
  std::vector<int> pageable(count);
  SHARDMARK_LAUNCH(fill, 4, 256, 0, streams_[0], pageable.data(), 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
}

TEST_F(Runtime, KernelsReachPeersOnlyIfEnabled) {
  int* far = nullptr;
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&far), bytes));
  EXPECT_CUDA(cudaSetDevice(0));
  SHARDMARK_LAUNCH(fill, 4, 256, 0, streams_[0], far, 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  mend_device(0);
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  SHARDMARK_LAUNCH(fill, 4, 256, 0, streams_[0], far, 1);
  EXPECT_CUDA(cudaStreamSynchronize(streams_[0]));
  EXPECT_CUDA(cudaFree(far));
}

TEST_F(Runtime, ALaunchBelongsToTheCurrentDevice) {
  EXPECT_CUDA(cudaSetDevice(1));
  SHARDMARK_LAUNCH(fill, 4, 256, 0, streams_[0], device_[0], 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaSetDevice(configuration().devices), cudaErrorInvalidDevice);
}

TEST_F(Runtime, LimitsOfLaunches) {
  const auto status = [&](dim3 grid, dim3 block, std::size_t shared) {
    SHARDMARK_LAUNCH(fill, grid, block, shared, streams_[0], device_[0], 1);
    return cudaGetLastError();
  };
  EXPECT_EQ(status(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status(0, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({1, 65536, 1}, 32, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status(1, {1, 1, 65}, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status(1, 32, 48 << 10), cudaSuccess);
  EXPECT_EQ(status(1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
  const auto most = static_cast<int>(most_shared_memory(configuration()));
  EXPECT_EQ(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
            cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_CUDA(cudaFuncSetAttribute(fill, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  EXPECT_EQ(status(1, 32, static_cast<std::size_t>(most)), cudaSuccess);
}

// The launch beyond the limit waits for the oldest one.
TEST_F(Runtime, AStreamHoldsSomeLaunches) {
  for (int i = 0; i <= 1024; ++i) queue_fill(0, i, streams_[0]);
  queue_fill(1, 1, streams_[1]);
  EXPECT_EQ(read(0, streams_[0]), 1024);
}

TEST_F(Runtime, AForkedChildOfAnInitializedParentFails) {
  const pid_t child = ::fork();
  if (child == 0) {
    int devices = 0;
    const bool right = cudaGetDeviceCount(&devices) == cudaErrorInitializationError &&
                       cudaSetDevice(0) == cudaErrorInitializationError;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Runtime, DevicesAreVirtual) {
  cudaDeviceProp properties;
  EXPECT_CUDA(cudaGetDeviceProperties(&properties, 1));
  EXPECT_EQ(std::string(properties.name).find("virtual GPU (sm_"), 0u);
  int can = 0;
  EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
}

}  // namespace
}  // namespace machine::virtual_gpu
