#pragma once
// The kernel language for a C++ compiler: machine/device/cuda/ptx.cuh includes this in place of
// nvcc's extensions. The types and the qualifiers are those of CUDA's own headers.

#include <cuda_runtime.h>
#include <math.h>  // its functions for float, without std::
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "machine/virtual_gpu/block.h"
#include "machine/virtual_gpu/launch.h"
#include "machine/virtual_gpu/tensor_cores.h"

#define __launch_bounds__(...)
// A block runs on one thread of the host, so memory of that thread is the block's. Each block finds
// NaN in it.
#undef __shared__
#define SHARDMARK_SHARED(type, name, extents)                              \
  static thread_local type name extents;                                   \
  static thread_local ::machine::virtual_gpu::BlockNumber block_of_##name; \
  ::machine::virtual_gpu::start_shared(block_of_##name, &(name), sizeof(name))

// The code of a kernel is compiled, not only its declarations (nvcc: the pass for the device).
#define SHARDMARK_DEVICE_PASS 1
#define SHARDMARK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)     \
  ::machine::virtual_gpu::launch(#kernel, kernel, grid, block, shared_bytes, \
                                 stream __VA_OPT__(, ) __VA_ARGS__)

namespace machine::virtual_gpu {

inline unsigned lane_of_warp() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warp_lanes;
}

// One lane's value, and the lane from which it takes another.
struct Shuffled {
  std::uint64_t value;
  unsigned source;
};

inline void exchange(Meeting& meeting, unsigned mask) {
  for (int lane = 0; lane < warp_lanes; ++lane) {
    if (!(mask >> lane & 1)) continue;
    Shuffled mine, theirs;
    std::memcpy(&mine, meeting.in[lane], sizeof mine);
    if (!(mask >> mine.source & 1))
      fail_kernel(cudaErrorLaunchFailure, "a shuffle reads a lane that is not in its mask");
    std::memcpy(&theirs, meeting.in[mine.source], sizeof theirs);
    std::memcpy(meeting.out[lane], &theirs.value, sizeof theirs.value);
  }
}

template <class T>
T shuffle(const char* operation, unsigned mask, T value, unsigned source) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  Shuffled mine{0, source};
  std::memcpy(&mine.value, &value, sizeof value);
  std::memcpy(&value, meet(operation, mask, &mine, sizeof mine, exchange), sizeof value);
  return value;
}

// Returns the votes of all lanes of the mask, as bits.
inline unsigned vote(const char* operation, unsigned mask, bool predicate) {
  const unsigned mine = predicate;
  unsigned votes = 0;
  const auto collect = [](Meeting& meeting, unsigned lanes) {
    unsigned all = 0;
    for (int lane = 0; lane < warp_lanes; ++lane)
      if (lanes >> lane & 1 && static_cast<unsigned>(meeting.in[lane][0]) != 0) all |= 1u << lane;
    for (int lane = 0; lane < warp_lanes; ++lane) std::memcpy(meeting.out[lane], &all, sizeof all);
  };
  std::memcpy(&votes, meet(operation, mask, &mine, sizeof mine, collect), sizeof votes);
  return votes;
}

}  // namespace machine::virtual_gpu

// ---- synchronization

inline void __syncthreads() { machine::virtual_gpu::sync_threads(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  machine::virtual_gpu::vote("__syncwarp", mask, true);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }
// Other threads of the host, for example the one that opens a gate, can run.
inline void __nanosleep(unsigned) { ::sched_yield(); }

// ---- warps (CUDA C++ Programming Guide, "Warp Shuffle Functions", "Warp Vote Functions")

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = machine::virtual_gpu::lane_of_warp(), w = static_cast<unsigned>(width);
  return machine::virtual_gpu::shuffle("__shfl_sync", mask, value,
                                       lane / w * w + static_cast<unsigned>(source) % w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = machine::virtual_gpu::lane_of_warp();
  const unsigned other = lane ^ static_cast<unsigned>(bits);
  const unsigned segment = ~(static_cast<unsigned>(width) - 1);  // the width is a power of two
  // A lane of a later segment cannot be read: the own value is returned.
  return machine::virtual_gpu::shuffle("__shfl_xor_sync", mask, value,
                                       (other & segment) > (lane & segment) ? lane : other);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const unsigned lane = machine::virtual_gpu::lane_of_warp(), w = static_cast<unsigned>(width);
  return machine::virtual_gpu::shuffle("__shfl_up_sync", mask, value,
                                       lane % w < distance ? lane : lane - distance);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  const unsigned lane = machine::virtual_gpu::lane_of_warp(), w = static_cast<unsigned>(width);
  return machine::virtual_gpu::shuffle("__shfl_down_sync", mask, value,
                                       lane % w + distance >= w ? lane : lane + distance);
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  return machine::virtual_gpu::vote("__ballot_sync", mask, predicate);
}
inline int __any_sync(unsigned mask, bool predicate) {
  return machine::virtual_gpu::vote("__any_sync", mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, bool predicate) {
  return machine::virtual_gpu::vote("__all_sync", mask, predicate) == mask;
}

// ---- atomics: other blocks and devices run in other threads of the host

template <class T>
T atomicAdd(T* address, T value) {
  return std::atomic_ref<T>(*address).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicCAS(T* address, T expected, T value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value);
  return expected;
}

// ---- integers and memory

inline int __ffs(int value) { return __builtin_ffs(value); }
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

// CUDA's headers have it only for nvcc.
template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// ---- the functions of machine/device/cuda/ptx.cuh

namespace machine::cuda {

inline unsigned char* dynamic_shared() { return virtual_gpu::dynamic_shared_memory(); }

inline std::uint64_t global_timer_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

inline void mma_bfloat16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  virtual_gpu::mma_m16n8k16(virtual_gpu::Narrow::bfloat16, d, a, b);
}
inline void mma_half(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  virtual_gpu::mma_m16n8k16(virtual_gpu::Narrow::half, d, a, b);
}
inline void load_matrices_transposed(unsigned (&words)[2], const void* row) {
  virtual_gpu::ldmatrix_m8n8_x2_trans(words, row);
}

}  // namespace machine::cuda
