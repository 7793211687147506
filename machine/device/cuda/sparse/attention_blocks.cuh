#pragma once
// Attention over the present blocks of a layout by fused multiply-adds, for any dtype. As in
// attention_plain.cuh, a warp owns some rows, and 32 other rows at a time are in shared memory. A
// tile of own rows is within one block, so its list has the blocks that all its rows see.

#include "machine/device/cuda/attention_plain.cuh"

namespace machine::cuda {

// The lists of one side (machine/device/kernels/block_lists.h), in the device's memory.
struct BlockListView {
  const std::int32_t *first, *other;
  std::int64_t blocks, block;

  // Calls part(row, end) for every 32 rows, or fewer, of the blocks that are present for the block
  // of `own`.
  template <class Part>
  __device__ void each_part(std::int64_t head, std::int64_t own, const Part& part) const {
    const std::int64_t at = head * blocks + own / block;
    for (std::int32_t i = first[at]; i < first[at + 1]; ++i) {
      const std::int64_t end = (other[i] + 1) * block;
      for (std::int64_t row = end - block; row < end; row += warp_size) part(row, end);
    }
  }
};

static_assert(16 % (attention_warps * forward_rows) == 0);  // blocks are multiples of 16
static_assert(16 % (attention_warps * backward_rows) == 0);

template <class T, int per_lane, bool drops>
__global__ void __launch_bounds__(attention_threads)
    attend_blocks(AttentionArguments<T> a, BlockListView lists) {
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
  lists.each_part(mine.head, mine.begin, [&](std::int64_t key, std::int64_t end) {
    if (key >= keys || (a.causal && key >= mine.begin + tile)) return;  // the same for all threads
    __syncthreads();
    load_rows(k, a.head + 1, a.k.at(mine.sequence, kv_head, 0), a.k.row, key, end, warp_size,
              a.head);
    load_rows(v, a.head + 1, a.v.at(mine.sequence, kv_head, 0), a.v.row, key, end, warp_size,
              a.head);
    __syncthreads();
    A scores[forward_rows];
    multiply_rows<forward_rows>(q + warp * forward_rows * a.head, k, a.head, scores);
#pragma unroll
    for (int r = 0; r < forward_rows; ++r) {
      const std::int64_t query = mine.begin + warp * forward_rows + r;
      const bool sees = key + lane < end && a.sees(query, key + lane, keys);
      const A score = sees ? scores[r] * a.scale : -std::numeric_limits<A>::infinity();
      const A part_top = join_warp(score, [](A x, A y) { return x < y ? y : x; });
      const A new_top = top[r] < part_top ? part_top : top[r];
      // Before its first key, a query has no weight and no sums.
      const bool begun = top[r] > -std::numeric_limits<A>::infinity();
      const A p = sees ? kernel::exponential(score - new_top) : A(0);
      const A shrink = begun ? kernel::exponential(top[r] - new_top) : A(0);
      weight[r] = weight[r] * shrink + join_warp(p, [](A x, A y) { return x + y; });
      top[r] = new_top;
#pragma unroll
      for (int x = 0; x < per_lane; ++x) sums[r][x] *= shrink;
      const bool kept = !drops || a.kept(a.kept.row(mine.sequence, mine.head, query), key + lane);
      add_weighted<per_lane>(kept ? p : A(0), v, a.head, sums[r]);
    }
  });
#pragma unroll
  for (int r = 0; r < forward_rows; ++r) {
    const std::int64_t query = mine.begin + warp * forward_rows + r;
    const A factor = drops ? static_cast<A>(a.kept.factor) : A(1);
    store_row<per_lane>(a.out.at(mine.sequence, mine.head, query), a.head,
                        weight[r] > 0 ? factor / weight[r] : A(0), sums[r]);
    if (lane == 0)
      a.log_sum_exp[(mine.sequence * a.heads + mine.head) * a.queries + query] =
          top[r] + log(weight[r]);
  }
}

// For queries, computes d_q of its own rows; the others are keys. For keys, computes d_k and d_v of
// its own rows; the others are the queries of all heads that share the key head.
template <class T, int per_lane, bool of_keys, bool drops>
__global__ void __launch_bounds__(attention_threads)
    attend_backward_blocks(AttentionArguments<T> a, BlockListView lists) {
  using A = kernel::Value<T>;
  constexpr int rows = backward_rows, tile = attention_warps * rows;
  const std::int64_t group = a.heads / a.kv_heads;
  const AttentionTile mine(blockIdx.x, a.queries, tile, of_keys ? a.kv_heads : a.heads);
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
    const auto load = [&](T* to_left, T* to_right, int pitch, bool of_k, std::int64_t begin,
                          std::int64_t limit, int count) {
      const auto& left_view = of_k ? a.k : a.q;
      const auto& right_view = of_k ? a.v : a.d_out;
      const std::int64_t head = of_k ? kv_head : q_head;
      load_rows(to_left, pitch, left_view.at(mine.sequence, head, 0), left_view.row, begin, limit,
                count, a.head);
      load_rows(to_right, pitch, right_view.at(mine.sequence, head, 0), right_view.row, begin,
                limit, count, a.head);
    };
    if (member == 0) load(own_left, own_right, a.head, of_keys, mine.begin, a.queries, tile);
    lists.each_part(q_head, mine.begin, [&](std::int64_t other, std::int64_t end) {
      // The same for all threads.
      if (!of_keys && (other >= keys || (a.causal && other >= mine.begin + tile))) return;
      if (of_keys && a.causal && end <= mine.begin) return;
      __syncthreads();
      load(left, right, a.head + 1, !of_keys, other, end, warp_size);
      __syncthreads();
      A scores[rows], slopes[rows];
      multiply_rows<rows>(own_left + warp * rows * a.head, left, a.head, scores);
      multiply_rows<rows>(own_right + warp * rows * a.head, right, a.head, slopes);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const std::int64_t own = mine.begin + warp * rows + r;
        const std::int64_t query = of_keys ? other + lane : own, key = of_keys ? own : other + lane;
        A p = 0, d_score = 0;
        if (other + lane < end && a.sees(query, key, keys)) {
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
    });
  }
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    const std::int64_t own = mine.begin + warp * rows + r;
    store_row<per_lane>((of_keys ? a.d_k : a.d_q).at(mine.sequence, mine.head, own), a.head,
                        a.scale, first[r]);
    if constexpr (of_keys)
      store_row<per_lane>(a.d_v.at(mine.sequence, mine.head, own), a.head, A(1), second[r]);
  }
}

}  // namespace machine::cuda
