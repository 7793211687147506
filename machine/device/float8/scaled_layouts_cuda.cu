// Copies of codes and scales in the layouts that cuBLASLt takes (cuBLAS, "Scaling factors layouts"
// and "1D Block Scaling Factors Layout").

#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/cuda/runtime.h"
#include "machine/device/float8/scaled_gemm_cuda.h"

namespace machine::cuda {
namespace {

constexpr int copy_threads = 256, tile = 64, width = 16;  // elements of a side; of one access
static_assert(copy_threads == tile * tile / width);

// A block transposes a tile through shared memory, 16 elements a thread. Four more columns spread
// the rows over the banks.
__global__ void __launch_bounds__(copy_threads)
    transpose_kernel(const unsigned char* from, std::int64_t rows, std::int64_t cols,
                     unsigned char* to) {
  SHARDMARK_SHARED(unsigned, words, [tile][tile / 4 + 1]);
  const std::int64_t across = (cols + tile - 1) / tile;
  const std::int64_t row = blockIdx.x / across * tile, col = blockIdx.x % across * tile;
  const int line = static_cast<int>(threadIdx.x) / (tile / width),
            first = static_cast<int>(threadIdx.x) % (tile / width) * width;
  if (row + line < rows && col + first < cols) {
    const uint4 loaded = *reinterpret_cast<const uint4*>(from + (row + line) * cols + col + first);
    unsigned* const where = words[line] + first / 4;
    where[0] = loaded.x, where[1] = loaded.y, where[2] = loaded.z, where[3] = loaded.w;
  }
  __syncthreads();
  if (col + line >= cols || row + first >= rows) return;
  unsigned packed[4];
  for (int word = 0; word < 4; ++word) {
    packed[word] = 0;
    for (int k = 0; k < 4; ++k)
      packed[word] |= (words[first + 4 * word + k][line / 4] >> line % 4 * 8 & 0xffu) << 8 * k;
  }
  *reinterpret_cast<uint4*>(to + (col + line) * rows + row + first) =
      make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

SHARDMARK_BOTH inline std::int64_t whole(std::int64_t extent, std::int64_t of) {
  return (extent + of - 1) / of * of;
}

// Writes one element per thread.
template <class T>
__global__ void __launch_bounds__(copy_threads)
    arrange_kernel(ScaleLayout layout, const T* from, T* to, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * copy_threads + threadIdx.x;
  if (i >= count) return;
  std::int64_t row = 0, part = 0;
  if (layout.scaling == Scaling::vector_128) {
    row = i % layout.outer, part = i / layout.outer;
  } else if (layout.scaling == Scaling::square_128) {
    const std::int64_t stride = whole(layout.parts, 4);
    row = i / stride, part = i % stride;
  } else {  // tiles of 128 rows and 4 parts
    const std::int64_t across = whole(layout.parts, 4) / 4, at = i / 512, in = i % 512;
    row = at / across * 128 + in % 16 / 4 * 32 + in / 16, part = at % across * 4 + in % 4;
  }
  const bool padding = row >= layout.outer || part >= layout.parts;
  to[i] = padding
              ? T(0)
              : from[layout.parts_first ? part * layout.outer + row : row * layout.parts + part];
}

unsigned blocks_of(std::int64_t count, std::int64_t of) {
  return static_cast<unsigned>((count + of - 1) / of);
}

}  // namespace

void transpose_codes(Stream& stream, const Tensor& from, const Tensor& to) {
  const int device = internals(stream.device()).index;
  make_current(device);
  const unsigned blocks = blocks_of(from.rows(), tile) * blocks_of(from.cols(), tile);
  SHARDMARK_LAUNCH(transpose_kernel, blocks, copy_threads, 0, handle_of(stream),
                   static_cast<const unsigned char*>(from.data()), from.rows(), from.cols(),
                   static_cast<unsigned char*>(to.data()));
  check(device, "the transposition of codes", cudaGetLastError());
}

std::int64_t arranged_size(const ScaleLayout& layout) {
  switch (layout.scaling) {
    case Scaling::tensor:
      return 1;
    case Scaling::vector_128:
      return layout.outer * layout.parts;
    case Scaling::square_128:
      return layout.outer * whole(layout.parts, 4);
    case Scaling::vector_32:
      return whole(layout.outer, 128) * whole(layout.parts, 4);
  }
  return 0;
}

void arrange_scales(Stream& stream, const ScaleLayout& layout, const Tensor& from,
                    const Tensor& to) {
  const int device = internals(stream.device()).index;
  make_current(device);
  const unsigned blocks = blocks_of(to.size(), copy_threads);
  if (from.dtype() == Dtype::uint8)
    SHARDMARK_LAUNCH(arrange_kernel<std::uint8_t>, blocks, copy_threads, 0, handle_of(stream),
                     layout, from.as<std::uint8_t>(), to.as<std::uint8_t>(), to.size());
  else
    SHARDMARK_LAUNCH(arrange_kernel<float>, blocks, copy_threads, 0, handle_of(stream), layout,
                     from.as<float>(), to.as<float>(), to.size());
  check(device, "the layout of scales", cudaGetLastError());
}

}  // namespace machine::cuda
