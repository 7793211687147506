#pragma once
// Runs the threads of a grid on one thread of the host, block after block. A thread runs until it
// must wait for other threads. Then it keeps its stack (a fiber), and the next thread starts on
// another one. So a kernel without synchronization is a plain loop, and a missing barrier shows: a
// thread runs far ahead of the threads that it should wait for.

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <cuda_runtime_api.h>

namespace machine::virtual_gpu {

inline constexpr int warp_lanes = 32;

// The values that the lanes of a warp bring to a rendezvous, and the values that they take away.
struct Meeting {
  alignas(16) std::byte in[warp_lanes][64];
  alignas(16) std::byte out[warp_lanes][32];
};
// Computes all `out` from all `in`. The last lane that arrives calls it.
using Complete = void (*)(Meeting& meeting, unsigned mask);

// Waits until all lanes of the mask have called this with the same operation and mask. Copies
// `bytes` into this lane's `in`, and returns its `out`. The kernel fails if a lane of the mask has
// ended or brings another operation.
const std::byte* meet(const char* operation, unsigned mask, const void* in, std::size_t bytes,
                      Complete complete);

// Waits until all threads of the block that have not ended call it.
void sync_threads();

// Ends the kernel with an error.
[[noreturn]] void fail_kernel(cudaError_t status, const std::string& text);

// Returns the dynamic shared memory of the block. At its start, each block finds NaN in it.
unsigned char* dynamic_shared_memory();
// Fills static shared memory with NaN when the first thread of a block reaches its declaration.
// `last`: the last block that reached it.
using BlockNumber = std::uint64_t;
void start_shared(BlockNumber& last, void* data, std::size_t bytes);
// Fails the kernel unless the bytes are shared memory of the block.
void check_shared(const char* operation, const void* address, std::size_t bytes);

struct Grid {
  const char* kernel;  // its name
  dim3 grid, block;
  std::size_t shared_bytes;
};
struct Outcome {
  cudaError_t status = cudaSuccess;
  std::string text;
};
// Calls `thread` for each thread of the grid. Returns the first failure.
Outcome run_grid(const Grid& grid, const std::function<void()>& thread);

// Installs the handlers of faults in kernels, and of accesses to device memory by host code.
void install_fault_handlers();

}  // namespace machine::virtual_gpu

// The built-in variables of the kernel language.
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
