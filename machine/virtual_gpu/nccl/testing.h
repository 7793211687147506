#pragma once
// Ranks of the virtual NCCL's tests: threads with a device each.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <barrier>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "machine/virtual_gpu/errors.h"

namespace machine::virtual_gpu::nccl {

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

// Device memory with values. Its memory is freed with it, after all work of the device.
template <class T>
class Values {
 public:
  explicit Values(std::size_t count, double first = 0, double step = 0) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<T>(first + step * static_cast<double>(i % 8));
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(data_, values.data(), count * sizeof(T), cudaMemcpyDefault, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  ~Values() { cudaFree(data_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  T* data() const { return data_; }

  // Returns the values after all work of the stream.
  std::vector<double> after(cudaStream_t stream) const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T), cudaMemcpyDefault, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    std::vector<double> result;
    for (const T& value : values) result.push_back(static_cast<double>(static_cast<float>(value)));
    return result;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

struct Member {
  int rank, size;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::barrier<>* all = nullptr;  // of the host threads
  void meet() const { all->arrive_and_wait(); }
  void synchronize() const {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
  }
};

inline ncclResult_t polled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  return state;
}

// Calls body on a thread for each rank, with a communicator, whose devices are 0, 1, ….
inline void on_ranks(int size, const std::function<void(Member&)>& body, bool ends_well = true) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::barrier<> all(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
      Member member{rank, size, nullptr, nullptr, &all};
      EXPECT_EQ(cudaStreamCreateWithFlags(&member.stream, cudaStreamNonBlocking), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      EXPECT_NCCL(ncclCommInitRankConfig(&member.comm, size, id, rank, &config));
      if (member.comm) body(member);
      if (ends_well) {
        member.synchronize();
        EXPECT_NCCL(ncclCommFinalize(member.comm));
        EXPECT_NCCL(ncclCommDestroy(member.comm));
      } else {
        member.meet();
        EXPECT_NCCL(ncclCommAbort(member.comm));
        mend_device(rank);
      }
      EXPECT_EQ(cudaStreamDestroy(member.stream), cudaSuccess);
      cudaGetLastError();
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace machine::virtual_gpu::nccl
