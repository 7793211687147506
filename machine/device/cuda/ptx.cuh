#pragma once
// The parts of the kernel language that only nvcc compiles: the launch of a kernel, dynamic shared
// memory, and instructions without an intrinsic. machine/virtual_gpu/kernel_language.h has the same
// parts for a C++ compiler (preset virtual-gpu).
//
//   SHARDMARK_LAUNCH(kernel, blocks, threads, shared_bytes, stream, arguments...);
//   SHARDMARK_SHARED(float, sums, [4][32]);    // shared memory of the block

#ifdef SHARDMARK_VIRTUAL_GPU
#include "machine/virtual_gpu/kernel_language.h"
#else

#include <cstdint>

#ifdef __CUDA_ARCH__
#define SHARDMARK_DEVICE_PASS 1  // the code of a kernel is compiled, not only its declarations
#endif
#define SHARDMARK_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#define SHARDMARK_SHARED(type, name, extents) __shared__ type name extents

namespace machine::cuda {

// Aligned to 16 bytes.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char dynamic_memory[];
  return dynamic_memory;
}

__device__ inline std::uint64_t global_timer_ns() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// d += a b of one 16 x 8 x 16 product (PTX ISA, "Warp-level matrix instructions").
__device__ inline void mma_bfloat16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_half(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads two 8 x 8 matrices of 16-bit elements, transposed. row: this lane's row address in shared
// memory, aligned to 16 bytes.
__device__ inline void load_matrices_transposed(unsigned (&words)[2], const void* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(words[0]), "=r"(words[1])
               : "r"(address)
               : "memory");
}

}  // namespace machine::cuda
#endif
