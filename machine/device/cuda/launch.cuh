#pragma once
// Runs kernel bodies on a CUDA device. Elementwise threads process 16 bytes of their widest tensor
// if all addresses allow it. A row has a warp, or a block if it is long. Sums are split by shapes
// only and joined in a fixed order, without atomics.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "machine/device/cuda/internals.h"
#include "machine/device/cuda/lanes.cuh"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/cuda/runtime.h"
#include "machine/device/cuda/scatter.cuh"
#include "machine/device/kernels/fields.h"
#include "machine/device/pattern.h"

namespace machine {
namespace cuda {

// ---- elementwise

template <class T, int count>
struct alignas(sizeof(T) * count) Pack {
  T at[count];
};

// Writes a pack with one store. A plain assignment would write element by element.
template <class P>
__device__ inline void store_pack(void* where, const P& pack) {
  unsigned words[4];
  if constexpr (sizeof(P) == 16) {
    memcpy(words, &pack, sizeof(P));
    __stcg(static_cast<uint4*>(where), make_uint4(words[0], words[1], words[2], words[3]));
  } else if constexpr (sizeof(P) == 8) {
    memcpy(words, &pack, sizeof(P));
    __stcg(static_cast<uint2*>(where), make_uint2(words[0], words[1]));
  } else {
    *static_cast<P*>(where) = pack;
  }
}

// A pack of one tensor in registers.
template <int count, class Field>
struct Loaded {
  using T = typename Field::Element;
  using P = Pack<T, count>;
  decltype(Field::data) where;
  P pack;

  __device__ Loaded(const Field& field, std::int64_t i) : where(field.data + i) {
    if constexpr (Field::reads) pack = *reinterpret_cast<const P*>(where);
  }
  __device__ auto slot(int k) { return Field::slot(pack.at + k); }
  __device__ void store() const {
    if constexpr (Field::writes) store_pack(where, pack);
  }
};

template <int count, bool indexed, class Body, class... Packs>
__device__ void run_packs(const Body& body, std::int64_t i, Packs... packs) {
#pragma unroll
  for (int k = 0; k < count; ++k) {
    if constexpr (indexed) {
      kernel::apply_at(body, i + k, packs.slot(k)...);
    } else {
      kernel::apply(body, packs.slot(k)...);
    }
  }
  (packs.store(), ...);
}

template <int width, bool indexed, class Body, class... Fields>
__global__ void __launch_bounds__(block_size)
    each_kernel(std::int64_t count, Body body, Fields... fields) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x) * width;
  if (i + width <= count) {
    run_packs<width, indexed>(body, i, Loaded<width, Fields>(fields, i)...);
  } else {
    for (std::int64_t j = i; j < count; ++j)
      run_packs<1, indexed>(body, j, Loaded<1, Fields>(fields, j)...);
  }
}

// For a matrix with separate rows: one pack of a row per thread.
template <int width, class Body, class... Fields>
__global__ void __launch_bounds__(block_size)
    strided_kernel(std::int64_t rows, std::int64_t cols, Body body,
                   kernel::Strided<Fields>... fields) {
  const std::int64_t packs = (cols + width - 1) / width;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x;
  const std::int64_t row = thread / packs, i = thread % packs * width;
  if (row >= rows) return;
  if (i + width <= cols) {
    run_packs<width, false>(body, i, Loaded<width, Fields>(fields.row(row), i)...);
  } else {
    for (std::int64_t j = i; j < cols; ++j)
      run_packs<1, false>(body, j, Loaded<1, Fields>(fields.row(row), j)...);
  }
}

// Converts an element's index in its shard to its global index.
template <class Body>
struct AtGlobalIndex {
  Body body;
  kernel::GlobalIndex index;
  template <class... Values>
  __device__ void operator()(std::uint64_t i, Values&... values) const {
    body(index(static_cast<std::int64_t>(i)), values...);
  }
};

// One pair of a position per thread. Computes sine and cosine once for the matrices of block y.
template <class Rotation>
__global__ void __launch_bounds__(block_size) rotate_kernel(Rotation rotation) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x;
  const std::int64_t position = thread / rotation.pairs, pair = thread % rotation.pairs;
  if (position >= rotation.positions) return;
  const auto turn = rotation.turn(position, rotation.frequency(pair));
  for (std::int64_t matrix = blockIdx.y; matrix < rotation.matrices(); matrix += gridDim.y)
    rotation.row(matrix, position).turn(pair, turn);
}

// ---- reductions to several targets: single elements before the first pack, then packs

constexpr int most_targets = 16;
template <class T>
struct Targets {
  T* at[most_targets];
  int count;
};

template <int width, class Body, class T>
__device__ void join_pack(const Body& body, std::int64_t i, const T* a, const T* b,
                          const Targets<T>& targets) {
  using P = Pack<T, width>;
  P left = *reinterpret_cast<const P*>(a + i);
  P right = *reinterpret_cast<const P*>(b + i);
  P joined;
#pragma unroll
  for (int k = 0; k < width; ++k)
    kernel::apply(body, kernel::In<T>::slot(left.at + k), kernel::In<T>::slot(right.at + k),
                  kernel::Out<T>::slot(joined.at + k));
  for (int t = 0; t < targets.count; ++t) store_pack(targets.at[t] + i, joined);
}

// Threads 0 … head - 1 also take one element before the packs. The last thread takes the rest.
template <int width, class Body, class T>
__global__ void __launch_bounds__(block_size)
    join_kernel(std::int64_t count, std::int64_t head, Body body, const T* a, const T* b,
                Targets<T> targets) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x;
  if (thread < head) join_pack<1>(body, thread, a, b, targets);
  const std::int64_t i = head + thread * width;
  if (i + width <= count) {
    join_pack<width>(body, i, a, b, targets);
  } else {
    for (std::int64_t j = i; j < count; ++j) join_pack<1>(body, j, a, b, targets);
  }
}

// ---- rows

template <class Body>
__global__ void __launch_bounds__(block_size) rows_by_warp(std::int64_t rows, Body body) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * warps_per_block + threadIdx.x / warp_size;
  if (row < rows) body(row, WarpLanes{});
}

template <class Body>
__global__ void __launch_bounds__(block_size) rows_by_block(Body body) {
  body(static_cast<std::int64_t>(blockIdx.x), BlockLanes{});
}

// ---- columns: 32 columns by 8 rows per block; sums parts of the rows, then the parts in order

template <int N, class A, class Body>
__global__ void __launch_bounds__(block_size)
    column_parts(std::int64_t rows, std::int64_t cols, std::int64_t rows_per_part, Body body,
                 A* parts) {
  const int x = threadIdx.x % warp_size, y = threadIdx.x / warp_size;
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * warp_size + x;
  const std::int64_t begin = blockIdx.y * rows_per_part;
  const std::int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;
  A sums[N] = {};
  if (col < cols) {
    for (std::int64_t row = begin + y; row < end; row += warps_per_block) {
      const auto terms = body(row, col);
#pragma unroll
      for (int k = 0; k < N; ++k) sums[k] += terms.of[k];
    }
  }
  SHARDMARK_SHARED(A, of_warp, [N][warps_per_block][warp_size]);
#pragma unroll
  for (int k = 0; k < N; ++k) of_warp[k][y][x] = sums[k];
  __syncthreads();
  if (y == 0 && col < cols) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A total = of_warp[k][0][x];
      for (int warp = 1; warp < warps_per_block; ++warp) total += of_warp[k][warp][x];
      parts[(k * gridDim.y + blockIdx.y) * cols + col] = total;
    }
  }
}

template <class O>
__global__ void __launch_bounds__(block_size)
    add_column_parts(std::int64_t cols, int num_parts, const kernel::Value<O>* parts, O* out) {
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x;
  if (col >= cols) return;
  kernel::Value<O> total = 0;
  for (int part = 0; part < num_parts; ++part) total += parts[part * cols + col];
  out[col] = kernel::narrow<O>(kernel::widen(out[col]) + total);
}

// ---- totals: a thread has the same elements, read singly or as a pack

template <bool packed, class Body, class T>
__global__ void __launch_bounds__(block_size)
    total_parts(std::int64_t count, Body body, const T* in, double* parts) {
  constexpr int width = 16 / sizeof(T);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_size * width;
  double mine = 0;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x) * width;
       i < count; i += step) {
    if (packed && i + width <= count) {
      const Pack<T, width> pack = *reinterpret_cast<const Pack<T, width>*>(in + i);
#pragma unroll
      for (int k = 0; k < width; ++k) mine += body(static_cast<double>(kernel::widen(pack.at[k])));
    } else {
      for (std::int64_t j = i; j < i + width && j < count; ++j)
        mine += body(static_cast<double>(kernel::widen(in[j])));
    }
  }
  const double total = BlockLanes::join(mine, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// Not a template, so it is internal to each file that includes it.
static __global__ void __launch_bounds__(block_size)
    join_totals(int num_parts, const double* parts, double* out) {
  const double total =
      BlockLanes{}.sum<double>(num_parts, [=](std::int64_t part) { return parts[part]; });
  if (threadIdx.x == 0) *out = total;
}

// ---- errors: joined by block, then by one block

SHARDMARK_BOTH inline void join_block(PatternErrors& mine) {
  const auto larger = [](auto a, auto b) { return a < b ? b : a; };
  mine.count = BlockLanes::join(mine.count, [](auto a, auto b) { return a + b; });
  mine.not_first = BlockLanes::join(mine.not_first, larger);
  mine.last = BlockLanes::join(mine.last, larger);
  mine.largest = BlockLanes::join(mine.largest, larger);
}

template <class Body>
__global__ void __launch_bounds__(block_size)
    error_parts(std::int64_t count, Body body, PatternErrors* parts) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block_size;
  PatternErrors mine{};
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * block_size + threadIdx.x; i < count;
       i += step)
    body(i, mine);
  join_block(mine);
  if (threadIdx.x == 0) parts[blockIdx.x] = mine;
}

static __global__ void __launch_bounds__(block_size)
    join_errors(int num_parts, const PatternErrors* parts, PatternErrors* errors) {
  PatternErrors mine{};
  for (int part = static_cast<int>(threadIdx.x); part < num_parts; part += block_size)
    mine.add(parts[part]);
  join_block(mine);
  if (threadIdx.x == 0) errors->add(mine);
}

}  // namespace cuda

class CudaLaunch {
 public:
  static constexpr Device::Kind kind = Device::Kind::cuda;

  explicit CudaLaunch(const cuda::Queue& queue)
      : device_(queue.device),
        stream_(queue.stream),
        scratch_(std::make_shared<cuda::Scratch>(queue)) {}
  explicit CudaLaunch(Stream& stream)
      : CudaLaunch(cuda::Queue{stream.device(), cuda::internals(stream.device()).index,
                               cuda::handle_of(stream)}) {}

  template <class Body, class... Fields>
  void each(std::int64_t count, Body body, Fields... fields) const {
    launch_each<false>(count, body, fields...);
  }
  void update(std::int64_t count, auto body, auto... fields) const { each(count, body, fields...); }
  void fill(std::int64_t count, auto body, auto out) const { each(count, body, out); }
  template <class Body, class... Fields>
  void each_at(std::int64_t rows, const kernel::GlobalIndex& index, Body body,
               Fields... fields) const {
    launch_each<true>(rows * index.cols, cuda::AtGlobalIndex<Body>{body, index}, fields...);
  }

  template <class Body, class... Fields>
  void each_strided(std::int64_t rows, std::int64_t cols, Body body,
                    kernel::Strided<Fields>... fields) const {
    if (rows * cols <= 0) return;
    if (((fields.stride == cols) && ...)) return each(rows * cols, body, fields.field...);
    constexpr int width = widest_pack<Fields...>;
    const auto blocks = [&](int pack) {
      return cuda::blocks_for(rows * cuda::blocks_for(cols, pack), cuda::block_size);
    };
    const auto run = [&](auto kernel, int pack) {
      start("an elementwise kernel of strided rows", kernel, blocks(pack), rows, cols, body,
            fields...);
    };
    if (((aligned(fields.field.data, sizeof(typename Fields::Element) * width) &&
          fields.stride % width == 0) &&
         ...))
      run(cuda::strided_kernel<width, Body, Fields...>, width);
    else
      run(cuda::strided_kernel<1, Body, Fields...>, 1);
  }

  template <class Rotation>
  void rotate(Rotation rotation) const {
    if (rotation.positions * rotation.pairs * rotation.matrices() <= 0) return;
    constexpr std::int64_t most_parts = 8;
    start("a rotation", cuda::rotate_kernel<Rotation>,
          {cuda::blocks_for(rotation.positions * rotation.pairs, cuda::block_size),
           std::min(rotation.matrices(), most_parts)},
          rotation);
  }

  // 16 bytes per thread if all addresses have the same offset to a multiple of 16, else one
  // element. Targets beyond most_targets are copies of the first.
  template <class T, class Body>
  void join_to(std::int64_t count, Body body, std::span<const void* const> ins,
               std::span<void* const> outs, Store /*store*/) const {
    if (ins.size() != 2) throw std::logic_error("a GPU reduces two values at a time");
    if (count <= 0 || outs.empty()) return;
    const kernel::In<T> a(ins[0]), b(ins[1]);
    constexpr std::size_t bytes = 16;
    constexpr int width = static_cast<int>(bytes / sizeof(T));
    const auto past = [](const void* data) {
      return reinterpret_cast<std::uintptr_t>(data) % bytes;
    };
    const std::size_t phase = past(a.data);
    bool alike = past(b.data) == phase && phase % sizeof(T) == 0;
    cuda::Targets<T> targets{};
    for (void* out : outs.first(std::min<std::size_t>(outs.size(), cuda::most_targets))) {
      alike = alike && past(out) == phase;
      targets.at[targets.count++] = static_cast<T*>(out);
    }
    if (alike) {
      const auto before = static_cast<std::int64_t>((bytes - phase) % bytes / sizeof(T));
      const std::int64_t head = std::min(count, before);
      const std::int64_t blocks = cuda::blocks_for(count - head, cuda::block_size * width);
      start("a reduction", cuda::join_kernel<width, Body, T>, std::max<std::int64_t>(1, blocks),
            count, head, body, a.data, b.data, targets);
    } else {
      start("a reduction", cuda::join_kernel<1, Body, T>, cuda::blocks_for(count, cuda::block_size),
            count, 0, body, a.data, b.data, targets);
    }
    for (void* out : outs.subspan(targets.count))
      cuda::check(device_, "a copy of a reduction",
                  cudaMemcpyAsync(out, outs[0], static_cast<std::size_t>(count) * sizeof(T),
                                  cudaMemcpyDefault, stream_));
  }

  template <class Body>
  void rows(std::int64_t rows, std::int64_t cols, Body body) const {
    constexpr std::int64_t long_row = 2048;
    if (rows <= 0) return;
    if (cols < long_row)
      start("a row-wise kernel", cuda::rows_by_warp<Body>,
            cuda::blocks_for(rows, cuda::warps_per_block), rows, body);
    else
      start("a row-wise kernel", cuda::rows_by_block<Body>, rows, body);
  }

  template <int N, class Body, class O>
  void columns(std::int64_t rows, std::int64_t cols, Body body, std::array<O*, N> outs) const {
    using A = kernel::Value<O>;
    if (cols <= 0) return;
    // Enough parts to fill a device. Each part has enough rows to justify its memory.
    const std::int64_t wanted =
        std::min(cuda::blocks_for(rows, 128), cuda::blocks_for(1 << 16, cols));
    const std::int64_t num_parts = std::clamp<std::int64_t>(wanted, 1, 64);
    const std::int64_t size = num_parts * cols;
    A* parts = static_cast<A*>(scratch_->at_least(N * size * sizeof(A)));
    start("a column-wise kernel", cuda::column_parts<N, A, Body>,
          {cuda::blocks_for(cols, cuda::warp_size), num_parts}, rows, cols,
          cuda::blocks_for(rows, num_parts), body, parts);
    for (int k = 0; k < N; ++k)
      start("the sum of a column-wise kernel's parts", cuda::add_column_parts<O>,
            cuda::blocks_for(cols, cuda::block_size), cols, static_cast<int>(num_parts),
            parts + k * size, outs[k]);
  }

  template <class Body, class T>
  void total(std::int64_t count, Body body, const T* in, double* out) const {
    constexpr int width = 16 / sizeof(T);
    constexpr std::int64_t most_parts = 1024;
    const int num_parts =
        static_cast<int>(std::min(cuda::blocks_for(count, cuda::block_size * width), most_parts));
    double* parts = static_cast<double*>(scratch_->at_least(most_parts * sizeof(double)));
    if (num_parts > 0)
      start("a total",
            aligned(in, 16) ? cuda::total_parts<true, Body, T> : cuda::total_parts<false, Body, T>,
            num_parts, count, body, in, parts);
    start("the sum of a total's parts", cuda::join_totals, 1, num_parts, parts, out);
  }

  template <class Body>
  void find_errors(std::int64_t count, Body body, PatternErrors* errors) const {
    if (count <= 0) return;
    constexpr std::int64_t most_parts = 1024, per_thread = 4;
    const int num_parts = static_cast<int>(
        std::min(cuda::blocks_for(count, cuda::block_size * per_thread), most_parts));
    auto* parts = static_cast<PatternErrors*>(scratch_->at_least(most_parts * sizeof(*errors)));
    start("a check", cuda::error_parts<Body>, num_parts, count, body, parts);
    start("the join of a check's errors", cuda::join_errors, 1, num_parts, parts, errors);
  }

  template <class Body>
  void scatter_rows(const std::int32_t* tokens, std::int64_t rows, Body body) const {
    if (rows <= 0) return;
    start("a scatter of rows", cuda::scatter_kernel<Body>,
          {cuda::blocks_for(rows, cuda::warps_per_block),
           cuda::blocks_for(body.cols, cuda::columns_of_warp)},
          tokens, rows, body);
  }

 private:
  static bool aligned(const void* data, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
  }
  // Number of elements of the widest field in 16 bytes.
  template <class... Fields>
  static constexpr int widest_pack =
      static_cast<int>(16 / std::max({sizeof(typename Fields::Element)...}));

  struct Grid : dim3 {
    Grid(std::int64_t blocks, std::int64_t parts = 1)
        : dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)) {}
  };
  template <class... Parameters, class... Arguments>
  void start(const char* what, void (*kernel)(Parameters...), Grid blocks,
             const Arguments&... arguments) const {
    cuda::make_current(device_);
    SHARDMARK_LAUNCH(kernel, blocks, cuda::block_size, 0, stream_, arguments...);
    cuda::check(device_, what, cudaGetLastError());
  }

  template <bool indexed, class Body, class... Fields>
  void launch_each(std::int64_t count, const Body& body, Fields... fields) const {
    if (count <= 0) return;
    constexpr int width = widest_pack<Fields...>;
    const auto run = [&](auto kernel, int pack) {
      start("an elementwise kernel", kernel, cuda::blocks_for(count, cuda::block_size * pack),
            count, body, fields...);
    };
    if ((aligned(fields.data, sizeof(typename Fields::Element) * width) && ...))
      run(cuda::each_kernel<width, indexed, Body, Fields...>, width);
    else
      run(cuda::each_kernel<1, indexed, Body, Fields...>, 1);
  }

  int device_;
  cudaStream_t stream_;
  std::shared_ptr<cuda::Scratch> scratch_;
};

}  // namespace machine
