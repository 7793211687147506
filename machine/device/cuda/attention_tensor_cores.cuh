#pragma once
// Attention on tensor cores, for bfloat16 and half: mma.m16n8k16 (PTX ISA, "Warp-level matrix
// instructions") on tiles in shared memory. A warp owns 16 rows. Scores stay in registers, because
// the accumulators of two products have the layout of the next product's left operand.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "machine/device/cuda/attention_arguments.cuh"
#include "machine/device/cuda/lanes.cuh"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/kernels/functions.h"

namespace machine::cuda {

constexpr int mma_warps = 4, mma_threads = mma_warps * warp_size;
constexpr int own_rows = mma_warps * 16;  // per block

// d += a b of one 16 x 8 x 16 product.
template <class T>
__device__ inline void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    mma_bfloat16(d, a, b);
  } else {
    mma_half(d, a, b);
  }
}

template <class T>
__device__ inline unsigned pack_pair(float low, float high) {
  unsigned pair;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    memcpy(&pair, &both, sizeof pair);
  } else {
    const __half2 both = __floats2half2_rn(low, high);
    memcpy(&pair, &both, sizeof pair);
  }
  return pair;
}

__device__ inline unsigned pair_at(const void* elements) {
  unsigned pair;
  memcpy(&pair, elements, sizeof pair);
  return pair;
}

// Rows of width elements, padded by 16 bytes to place the elements of a column in different banks.
template <class T, int width>
struct MmaTile {
  static constexpr int pitch = width + 8;
  T* data;

  __device__ void load(const HeadView<const T>& from, std::int64_t sequence, std::int64_t head,
                       std::int64_t begin, std::int64_t limit, int rows, int cols,
                       bool packed) const {
    const T* first = from.at(sequence, head, 0);
    for (int i = static_cast<int>(threadIdx.x); i < rows * width / 8; i += mma_threads) {
      const int row = i / (width / 8), col = i % (width / 8) * 8;
      const T* in = first + (begin + row) * from.row + col;
      T* to = data + row * pitch + col;
      const bool inside = begin + row < limit;
      if (inside && packed && col + 8 <= cols) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(in);
      } else {
        for (int k = 0; k < 8; ++k) to[k] = inside && col + k < cols ? in[k] : T(0.0f);
      }
    }
  }
  // Columns [k, k + 16) of rows [row, row + 16) as a left operand.
  __device__ void left(unsigned (&a)[4], int row, int k) const {
    const int lane = WarpLanes::lane();
    const T* at = data + (row + lane / 4) * pitch + k + lane % 4 * 2;
    a[0] = pair_at(at);
    a[1] = pair_at(at + 8 * pitch);
    a[2] = pair_at(at + 8);
    a[3] = pair_at(at + 8 * pitch + 8);
  }
  // Loads the same columns of rows [row, row + 8), transposed, as a right operand.
  __device__ void right_of_rows(unsigned (&b)[2], int row, int k) const {
    const int lane = WarpLanes::lane();
    const T* at = data + (row + lane / 4) * pitch + k + lane % 4 * 2;
    b[0] = pair_at(at);
    b[1] = pair_at(at + 8);
  }
  // Rows [k, k + 16), columns [col, col + 8), as a right operand: b[k][n] = rows[k][n].
  __device__ void right(unsigned (&b)[2], int k, int col) const {
    load_matrices_transposed(b, data + (k + WarpLanes::lane() % 16) * pitch + col);
  }
};

// products[n] = own rows times rows [8 n, 8 n + 8) of the others, transposed.
template <int others, class T, int width>
__device__ void multiply_rows(const MmaTile<T, width>& own, const MmaTile<T, width>& other,
                              float (&products)[others / 8][4]) {
  const int row = static_cast<int>(threadIdx.x) / warp_size * 16;
#pragma unroll
  for (int n = 0; n < others / 8; ++n)
    for (int i = 0; i < 4; ++i) products[n][i] = 0;
#pragma unroll
  for (int k = 0; k < width; k += 16) {
    unsigned a[4];
    own.left(a, row, k);
#pragma unroll
    for (int n = 0; n < others / 8; ++n) {
      unsigned b[2];
      other.right_of_rows(b, 8 * n, k);
      multiply_add<T>(products[n], a, b);
    }
  }
}

// sums += weights (rounded to T) times the others.
template <int others, class T, int width>
__device__ void add_weighted(const float (&weights)[others / 8][4], const MmaTile<T, width>& other,
                             float (&sums)[width / 8][4]) {
#pragma unroll
  for (int k = 0; k < others; k += 16) {
    const float(&low)[4] = weights[k / 8];
    const float(&high)[4] = weights[k / 8 + 1];
    const unsigned a[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                           pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < width / 8; ++n) {
      unsigned b[2];
      other.right(b, k, 8 * n);
      multiply_add<T>(sums[n], a, b);
    }
  }
}

// Return the row of element i of product n in the warp's 16 rows, and its column in the others.
__device__ inline int row_of(int i) { return WarpLanes::lane() / 4 + i / 2 * 8; }
__device__ inline int col_of(int n, int i) { return 8 * n + WarpLanes::lane() % 4 * 2 + i % 2; }

// Joins values of the four lanes that share a row.
template <class Join>
__device__ inline float join_row(float mine, const Join& join) {
  mine = join(mine, __shfl_xor_sync(every_lane, mine, 1));
  return join(mine, __shfl_xor_sync(every_lane, mine, 2));
}

template <class T, int width>
__device__ void store_rows(const HeadView<T>& to, std::int64_t sequence, std::int64_t head,
                           std::int64_t begin, std::int64_t limit, int cols,
                           const float (&factors)[2], const float (&sums)[width / 8][4]) {
#pragma unroll
  for (int n = 0; n < width / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t row = begin + row_of(i);
      const int col = col_of(n, i);
      if (row < limit && col < cols)
        to.at(sequence, head, row)[col] = kernel::narrow<T>(sums[n][i] * factors[i / 2]);
    }
}

constexpr int forward_keys = 64, backward_others = 32;

template <class T, int width>
constexpr std::size_t mma_bytes(int tiles_of_own, int tiles_of_others, int others) {
  return sizeof(T) * MmaTile<T, width>::pitch *
         static_cast<std::size_t>(tiles_of_own * own_rows + tiles_of_others * others);
}

template <class T, int width, bool drops>
__global__ void __launch_bounds__(mma_threads) attend_mma(AttentionArguments<T> a) {
  using Tile = MmaTile<T, width>;
  constexpr int keys = forward_keys;
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  const AttentionTile mine(blockIdx.x, a.queries, own_rows, a.heads);
  const std::int64_t kv_head = mine.head / (a.heads / a.kv_heads);
  // Rows are numbered with 32 bits here, because every register counts.
  const int first = static_cast<int>(mine.begin);                            // of the block
  const int begin = first + static_cast<int>(threadIdx.x) / warp_size * 16;  // of the warp
  const Tile q{reinterpret_cast<T*>(dynamic_shared())};
  const Tile k{q.data + own_rows * Tile::pitch};
  const Tile v{k.data + keys * Tile::pitch};
  q.load(a.q, mine.sequence, mine.head, mine.begin, a.queries, own_rows, a.head, a.packed);
  float top[2] = {lowest, lowest}, weight[2] = {0, 0}, sums[width / 8][4] = {};
  const int its_keys = static_cast<int>(a.keys_of(mine.sequence));
  const int seen = a.causal && first + own_rows < its_keys ? first + own_rows : its_keys;
  for (int key = 0; key < seen; key += keys) {
    __syncthreads();
    k.load(a.k, mine.sequence, kv_head, key, a.keys, keys, a.head, a.packed);
    v.load(a.v, mine.sequence, kv_head, key, a.keys, keys, a.head, a.packed);
    __syncthreads();
    float p[keys / 8][4];
    multiply_rows<keys>(q, k, p);
    float tile_top[2] = {lowest, lowest};
#pragma unroll
    for (int n = 0; n < keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool sees = a.sees(begin + row_of(i), key + col_of(n, i), its_keys);
        p[n][i] = sees ? p[n][i] * a.scale : lowest;
        tile_top[i / 2] = tile_top[i / 2] < p[n][i] ? p[n][i] : tile_top[i / 2];
      }
    float shrink[2], tile_weight[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float joined = join_row(tile_top[half], [](float x, float y) { return x < y ? y : x; });
      const float new_top = top[half] < joined ? joined : top[half];
      shrink[half] = kernel::exponential(top[half] - new_top);
      top[half] = new_top;
    }
#pragma unroll
    for (int n = 0; n < keys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[n][i] = kernel::exponential(p[n][i] - top[i / 2]);
        tile_weight[i / 2] += p[n][i];
        if constexpr (drops) {
          const std::int64_t row = a.kept.row(mine.sequence, mine.head, begin + row_of(i));
          if (!a.kept(row, key + col_of(n, i))) p[n][i] = 0;
        }
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weight[half] = weight[half] * shrink[half] +
                     join_row(tile_weight[half], [](float x, float y) { return x + y; });
#pragma unroll
    for (int n = 0; n < width / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= shrink[i / 2];
    add_weighted<keys>(p, v, sums);
  }
  // A query without keys has no weight, and its sums are zero.
  const float factor = drops ? static_cast<float>(a.kept.factor) : 1;
  const float factors[2] = {weight[0] > 0 ? factor / weight[0] : 0,
                            weight[1] > 0 ? factor / weight[1] : 0};
  store_rows<T, width>(a.out, mine.sequence, mine.head, begin, a.queries, a.head, factors, sums);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t query = begin + row_of(2 * half);
    if (WarpLanes::lane() % 4 == 0 && query < a.queries)
      a.log_sum_exp[(mine.sequence * a.heads + mine.head) * a.queries + query] =
          top[half] + logf(weight[half]);
  }
}

// Like attend_backward_plain: d_q for queries, d_k and d_v for keys.
template <class T, int width, bool of_keys, bool drops>
__global__ void __launch_bounds__(mma_threads) attend_backward_mma(AttentionArguments<T> a) {
  using Tile = MmaTile<T, width>;
  constexpr int others = backward_others;
  const std::int64_t num_own = of_keys ? a.keys : a.queries,
                     num_others = of_keys ? a.queries : a.keys;
  const std::int64_t group = a.heads / a.kv_heads;
  const AttentionTile mine(blockIdx.x, num_own, own_rows, of_keys ? a.kv_heads : a.heads);
  const std::int64_t kv_head = of_keys ? mine.head : mine.head / group;
  const int first_row = static_cast<int>(mine.begin);
  const int begin = first_row + static_cast<int>(threadIdx.x) / warp_size * 16;
  const Tile own_left{reinterpret_cast<T*>(dynamic_shared())};   // q or k
  const Tile own_right{own_left.data + own_rows * Tile::pitch};  // d_out or v
  const Tile left{own_right.data + own_rows * Tile::pitch};      // k or q
  const Tile right{left.data + others * Tile::pitch};            // v or d_out
  const int its_keys = static_cast<int>(a.keys_of(mine.sequence));
  float first[width / 8][4] = {}, second[width / 8][4] = {};
  for (std::int64_t member = 0; member < (of_keys ? group : 1); ++member) {
    const std::int64_t q_head = of_keys ? kv_head * group + member : mine.head;
    const float* log_sum_exp = a.log_sum_exp + (mine.sequence * a.heads + q_head) * a.queries;
    const float* delta = a.delta + (mine.sequence * a.heads + q_head) * a.queries;
    const auto load = [&](const Tile& to_left, const Tile& to_right, bool keys, std::int64_t at,
                          int rows) {
      const std::int64_t limit = keys ? a.keys : a.queries, head = keys ? kv_head : q_head;
      to_left.load(keys ? a.k : a.q, mine.sequence, head, at, limit, rows, a.head, a.packed);
      to_right.load(keys ? a.v : a.d_out, mine.sequence, head, at, limit, rows, a.head, a.packed);
    };
    if (member == 0) load(own_left, own_right, of_keys, mine.begin, own_rows);
    const int from = of_keys && a.causal ? first_row / others * others : 0;
    const int all = of_keys ? static_cast<int>(num_others) : its_keys;
    const int to = !of_keys && a.causal && first_row + own_rows < all ? first_row + own_rows : all;
    for (int other = from; other < to; other += others) {
      __syncthreads();
      load(left, right, !of_keys, other, others);
      __syncthreads();
      float p[others / 8][4], d_scores[others / 8][4];
      multiply_rows<others>(own_left, left, p);
      multiply_rows<others>(own_right, right, d_scores);
#pragma unroll
      for (int n = 0; n < others / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int own = begin + row_of(i), its = other + col_of(n, i);
          const int query = of_keys ? its : own, key = of_keys ? own : its;
          float probability = 0, slope = 0;
          if (a.sees(query, key, its_keys)) {
            probability = kernel::exponential(p[n][i] * a.scale - log_sum_exp[query]);
            float factor = 1;
            if constexpr (drops)
              factor = a.kept(a.kept.row(mine.sequence, q_head, query), key)
                           ? static_cast<float>(a.kept.factor)
                           : 0;
            slope = probability * (d_scores[n][i] * factor - delta[query]);
            probability *= factor;
          }
          p[n][i] = probability;
          d_scores[n][i] = slope;
        }
      add_weighted<others>(d_scores, left, first);
      if constexpr (of_keys) add_weighted<others>(p, right, second);
    }
  }
  const float scales[2] = {a.scale, a.scale}, ones[2] = {1, 1};
  store_rows<T, width>(of_keys ? a.d_k : a.d_q, mine.sequence, mine.head, begin, num_own, a.head,
                       scales, first);
  if constexpr (of_keys)
    store_rows<T, width>(a.d_v, mine.sequence, mine.head, begin, num_own, a.head, ones, second);
}

}  // namespace machine::cuda
