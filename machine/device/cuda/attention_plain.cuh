#pragma once
// Attention by fused multiply-adds, for any dtype. A warp owns some rows and processes 32 other
// rows at a time, which are in shared memory. To compute scores, a lane takes one of the other
// rows. To use scores, a lane takes every 32nd column.

#include "machine/device/cuda/attention_arguments.cuh"
#include "machine/device/cuda/lanes.cuh"
#include "machine/device/cuda/ptx.cuh"
#include "machine/device/kernels/functions.h"

namespace machine::cuda {

constexpr int attention_warps = 4, attention_threads = attention_warps * warp_size;
constexpr int forward_rows = 4, backward_rows = 2;  // per warp

// Loads rows [begin, begin + count) of `first`, zeros from `limit` on, `pitch` elements apart.
template <class T>
__device__ void load_rows(T* to, int pitch, const T* first, std::int64_t stride, std::int64_t begin,
                          std::int64_t limit, int count, int cols) {
  for (int i = static_cast<int>(threadIdx.x); i < count * cols; i += attention_threads) {
    const int row = i / cols, col = i % cols;
    to[row * pitch + col] =
        begin + row < limit ? first[(begin + row) * stride + col] : T(kernel::Value<T>(0));
  }
}

// Computes the products of this lane's row of `others` and each of the warp's rows of `own`.
template <int rows, class T>
__device__ void multiply_rows(const T* own, const T* others, int cols,
                              kernel::Value<T> (&products)[rows]) {
  const T* other = others + static_cast<std::int64_t>(WarpLanes::lane()) * (cols + 1);
#pragma unroll
  for (int r = 0; r < rows; ++r) products[r] = 0;
  for (int c = 0; c < cols; ++c) {
    const auto value = kernel::widen(other[c]);
#pragma unroll
    for (int r = 0; r < rows; ++r)
      products[r] = kernel::fused(kernel::widen(own[r * cols + c]), value, products[r]);
  }
}

// sums[x] += sum over lanes j of weight(j) * others[j][lane + 32 x].
template <int per_lane, class T>
__device__ void add_weighted(kernel::Value<T> weight, const T* others, int cols,
                             kernel::Value<T> (&sums)[per_lane]) {
  for (int j = 0; j < warp_size; ++j) {
    const auto one = __shfl_sync(every_lane, weight, j);
#pragma unroll
    for (int x = 0; x < per_lane; ++x) {
      const int c = WarpLanes::lane() + x * warp_size;
      if (c < cols)
        sums[x] = kernel::fused(one, kernel::widen(others[j * (cols + 1) + c]), sums[x]);
    }
  }
}

template <int per_lane, class T>
__device__ void store_row(T* to, int cols, kernel::Value<T> factor,
                          const kernel::Value<T> (&sums)[per_lane]) {
#pragma unroll
  for (int x = 0; x < per_lane; ++x) {
    const int c = WarpLanes::lane() + x * warp_size;
    if (c < cols) to[c] = kernel::narrow<T>(sums[x] * factor);
  }
}

template <class T>
constexpr std::size_t plain_forward_bytes(int cols) {
  return sizeof(T) * static_cast<std::size_t>(attention_warps * forward_rows * cols +
                                              2 * warp_size * (cols + 1));
}
template <class T>
constexpr std::size_t plain_backward_bytes(int cols) {
  return sizeof(T) * static_cast<std::size_t>(2 * attention_warps * backward_rows * cols +
                                              2 * warp_size * (cols + 1));
}

template <class T, int per_lane, bool drops>
__global__ void __launch_bounds__(attention_threads) attend_plain(AttentionArguments<T> a) {
  using A = kernel::Value<T>;
  constexpr int tile = attention_warps * forward_rows;
  const AttentionTile mine(blockIdx.x, a.queries, tile, a.heads);
  const std::int64_t kv_head = mine.head / (a.heads / a.kv_heads);
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = WarpLanes::lane();
  T* q = reinterpret_cast<T*>(dynamic_shared());
  T* k = q + tile * a.head;
  T* v = k + warp_size * (a.head + 1);
  load_rows(q, a.head, a.q.at(mine.sequence, mine.head, 0), a.q.row, mine.begin, a.queries, tile,
            a.head);
  A top[forward_rows], weight[forward_rows] = {}, sums[forward_rows][per_lane] = {};
#pragma unroll
  for (int r = 0; r < forward_rows; ++r) top[r] = -std::numeric_limits<A>::infinity();
  const std::int64_t keys = a.keys_of(mine.sequence);
  const std::int64_t seen = a.causal && mine.begin + tile < keys ? mine.begin + tile : keys;
  for (std::int64_t key = 0; key < seen; key += warp_size) {
    __syncthreads();
    load_rows(k, a.head + 1, a.k.at(mine.sequence, kv_head, 0), a.k.row, key, a.keys, warp_size,
              a.head);
    load_rows(v, a.head + 1, a.v.at(mine.sequence, kv_head, 0), a.v.row, key, a.keys, warp_size,
              a.head);
    __syncthreads();
    A scores[forward_rows];
    multiply_rows<forward_rows>(q + warp * forward_rows * a.head, k, a.head, scores);
#pragma unroll
    for (int r = 0; r < forward_rows; ++r) {
      const std::int64_t query = mine.begin + warp * forward_rows + r;
      const bool sees = a.sees(query, key + lane, keys);
      const A score = sees ? scores[r] * a.scale : -std::numeric_limits<A>::infinity();
      const A tile_top = join_warp(score, [](A x, A y) { return x < y ? y : x; });
      // A query beyond the last sees no key and is not written.
      const A new_top = top[r] < tile_top ? tile_top : top[r];
      const A p = sees ? kernel::exponential(score - new_top) : A(0);
      const A shrink = kernel::exponential(top[r] - new_top);
      weight[r] = weight[r] * shrink + join_warp(p, [](A x, A y) { return x + y; });
      top[r] = new_top;
#pragma unroll
      for (int x = 0; x < per_lane; ++x) sums[r][x] *= shrink;
      const bool kept = !drops || a.kept(a.kept.row(mine.sequence, mine.head, query), key + lane);
      add_weighted<per_lane>(kept ? p : A(0), v, a.head, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < forward_rows; ++r) {
    const std::int64_t query = mine.begin + warp * forward_rows + r;
    if (query >= a.queries) continue;
    // A query without keys has no weight, and its sums are zero.
    const A factor = drops ? static_cast<A>(a.kept.factor) : A(1);
    store_row<per_lane>(a.out.at(mine.sequence, mine.head, query), a.head,
                        weight[r] > 0 ? factor / weight[r] : A(0), sums[r]);
    if (lane == 0)
      a.log_sum_exp[(mine.sequence * a.heads + mine.head) * a.queries + query] =
          top[r] + log(weight[r]);
  }
}

// delta = sum of out * d_out over a row. One warp per row.
template <class T>
__global__ void __launch_bounds__(block_size) attention_delta(AttentionArguments<T> a) {
  using A = kernel::Value<T>;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * warps_per_block + threadIdx.x / warp_size;
  if (row >= a.sequences * a.heads * a.queries) return;
  const std::int64_t head = row / a.queries, query = row % a.queries;
  const T* out = a.out_read.at(head / a.heads, head % a.heads, query);
  const T* d_out = a.d_out.at(head / a.heads, head % a.heads, query);
  const A sum = WarpLanes{}.template sum<A>(
      a.head, [=](std::int64_t c) { return kernel::widen(out[c]) * kernel::widen(d_out[c]); });
  if (WarpLanes{}.leads()) a.delta[row] = sum;
}

// For queries, computes d_q of its own rows; the others are keys. For keys, computes d_k and d_v of
// its own rows; the others are the queries of all heads that share the key head.
template <class T, int per_lane, bool of_keys, bool drops>
__global__ void __launch_bounds__(attention_threads)
    attend_backward_plain(AttentionArguments<T> a) {
  using A = kernel::Value<T>;
  constexpr int rows = backward_rows, tile = attention_warps * rows;
  const std::int64_t num_own = of_keys ? a.keys : a.queries,
                     num_others = of_keys ? a.queries : a.keys;
  const std::int64_t group = a.heads / a.kv_heads;
  const AttentionTile mine(blockIdx.x, num_own, tile, of_keys ? a.kv_heads : a.heads);
  const std::int64_t kv_head = of_keys ? mine.head : mine.head / group;
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = WarpLanes::lane();
  T* own_left = reinterpret_cast<T*>(dynamic_shared());  // q or k
  T* own_right = own_left + tile * a.head;               // d_out or v
  T* left = own_right + tile * a.head;                   // k or q
  T* right = left + warp_size * (a.head + 1);            // v or d_out
  const std::int64_t keys = a.keys_of(mine.sequence);
  A first[rows][per_lane] = {}, second[rows][per_lane] = {};
  for (std::int64_t member = 0; member < (of_keys ? group : 1); ++member) {
    const std::int64_t q_head = of_keys ? kv_head * group + member : mine.head;
    const std::int64_t statistics = (mine.sequence * a.heads + q_head) * a.queries;
    const auto load = [&](T* to_left, T* to_right, int pitch, bool keys, std::int64_t begin,
                          int count) {
      const std::int64_t limit = keys ? a.keys : a.queries;
      const auto& left_view = keys ? a.k : a.q;
      const auto& right_view = keys ? a.v : a.d_out;
      const std::int64_t head = keys ? kv_head : q_head;
      load_rows(to_left, pitch, left_view.at(mine.sequence, head, 0), left_view.row, begin, limit,
                count, a.head);
      load_rows(to_right, pitch, right_view.at(mine.sequence, head, 0), right_view.row, begin,
                limit, count, a.head);
    };
    if (member == 0) load(own_left, own_right, a.head, of_keys, mine.begin, tile);
    // The others that at least one own row sees, or that see one.
    const std::int64_t from = of_keys && a.causal ? mine.begin / warp_size * warp_size : 0;
    const std::int64_t all = of_keys ? num_others : keys;
    const std::int64_t to =
        !of_keys && a.causal && mine.begin + tile < all ? mine.begin + tile : all;
    for (std::int64_t other = from; other < to; other += warp_size) {
      __syncthreads();
      load(left, right, a.head + 1, !of_keys, other, warp_size);
      __syncthreads();
      A scores[rows], slopes[rows];
      multiply_rows<rows>(own_left + warp * rows * a.head, left, a.head, scores);
      multiply_rows<rows>(own_right + warp * rows * a.head, right, a.head, slopes);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const std::int64_t own = mine.begin + warp * rows + r;
        const std::int64_t query = of_keys ? other + lane : own, key = of_keys ? own : other + lane;
        A p = 0, d_score = 0;
        if (a.sees(query, key, keys)) {
          p = kernel::exponential(scores[r] * a.scale - a.log_sum_exp[statistics + query]);
          A slope = slopes[r];
          const A all = p;
          if constexpr (drops) {
            const bool kept = a.kept(a.kept.row(mine.sequence, q_head, query), key);
            const A factor = kept ? static_cast<A>(a.kept.factor) : A(0);
            slope *= factor;
            p *= factor;
          }
          d_score = all * (slope - a.delta[statistics + query]);
        }
        add_weighted<per_lane>(d_score, left, a.head, first[r]);
        if constexpr (of_keys) add_weighted<per_lane>(p, right, a.head, second[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const std::int64_t own = mine.begin + warp * rows + r;
    if (own >= num_own) continue;
    store_row<per_lane>((of_keys ? a.d_k : a.d_q).at(mine.sequence, mine.head, own), a.head,
                        a.scale, first[r]);
    if constexpr (of_keys)
      store_row<per_lane>(a.d_v.at(mine.sequence, mine.head, own), a.head, A(1), second[r]);
  }
}

}  // namespace machine::cuda
