#pragma once
// The lanes of a row (kernels/row_bodies.h): a warp's, or a block's. The host pass of nvcc also
// compiles them, and must not call them.

#include <cstdint>
#include <limits>

#include "machine/device/cuda/ptx.cuh"
#include "machine/device/dtype.h"

namespace machine::cuda {

constexpr int warp_size = 32, block_size = 256, warps_per_block = block_size / warp_size;
constexpr unsigned every_lane = 0xffffffffu;

constexpr std::int64_t blocks_for(std::int64_t count, std::int64_t per_block) {
  return (count + per_block - 1) / per_block;
}

template <class A, class Join>
SHARDMARK_BOTH inline A join_warp(A mine, const Join& join) {
#ifdef SHARDMARK_DEVICE_PASS
  for (int distance = warp_size / 2; distance > 0; distance /= 2)
    mine = join(mine, __shfl_xor_sync(every_lane, mine, distance));
#endif
  return mine;
}

// The sum of the lanes before this one, and of all of them.
struct LaneSums {
  std::int32_t before, total;
};

SHARDMARK_BOTH inline LaneSums sums_of_warp([[maybe_unused]] int lane, std::int32_t mine) {
  std::int32_t sum_to = mine, total = 0;
#ifdef SHARDMARK_DEVICE_PASS
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const std::int32_t below = __shfl_up_sync(every_lane, sum_to, static_cast<unsigned>(distance));
    if (lane >= distance) sum_to += below;
  }
  total = __shfl_sync(every_lane, sum_to, warp_size - 1);
#endif
  return {sum_to - mine, total};
}

SHARDMARK_BOTH inline int thread_of_block() {
#ifdef SHARDMARK_DEVICE_PASS
  return static_cast<int>(threadIdx.x);
#else
  return 0;
#endif
}

template <class Lanes>
struct LanesBase {
  template <class Body>
  SHARDMARK_BOTH void each(std::int64_t n, const Body& body) const {
    for (std::int64_t c = Lanes::lane(); c < n; c += Lanes::width) body(c);
  }
  template <class A, class Body>
  SHARDMARK_BOTH A sum(std::int64_t n, const Body& body) const {
    A mine = 0;
    for (std::int64_t c = Lanes::lane(); c < n; c += Lanes::width) mine += body(c);
    return Lanes::join(mine, [](A a, A b) { return a + b; });
  }
  template <class A, class Body>
  SHARDMARK_BOTH A max(std::int64_t n, const Body& body) const {
    const auto larger = [](A a, A b) { return a < b ? b : a; };
    A mine = -std::numeric_limits<A>::infinity();
    for (std::int64_t c = Lanes::lane(); c < n; c += Lanes::width) mine = larger(mine, body(c));
    return Lanes::join(mine, larger);
  }
  template <class Body, class Put>
  SHARDMARK_BOTH std::int32_t sums_before(std::int64_t n, const Body& body, const Put& put) const {
    std::int32_t before = 0;
    for (std::int64_t first = 0; first < n; first += Lanes::width) {
      const std::int64_t c = first + Lanes::lane();
      const LaneSums sums = Lanes::sums_of_lanes(c < n ? body(c) : 0);
      if (c < n) put(c, before + sums.before);
      before += sums.total;
    }
    return before;
  }
  template <class Is, class Put>
  SHARDMARK_BOTH void list(std::int64_t n, const Is& is, const Put& put) const {
    sums_before(
        n, [&](std::int64_t c) { return is(c) ? 1 : 0; },
        [&](std::int64_t c, std::int32_t before) {
          if (is(c)) put(before, c);
        });
  }
  // A row may exceed the registers, so `use` recomputes each value that it reads twice.
  template <class A, class Body, class Use>
  SHARDMARK_BOTH void remember(std::int64_t /*n*/, const Body& body, const Use& use) const {
    use(body);
  }
  SHARDMARK_BOTH bool leads() const { return Lanes::lane() == 0; }
};

struct WarpLanes : LanesBase<WarpLanes> {
  static constexpr int width = warp_size;
  SHARDMARK_BOTH static int lane() { return thread_of_block() % warp_size; }
  template <class A, class Join>
  SHARDMARK_BOTH static A join(A mine, const Join& join_two) {
    return join_warp(mine, join_two);
  }
  SHARDMARK_BOTH static LaneSums sums_of_lanes(std::int32_t mine) {
    return sums_of_warp(lane(), mine);
  }
};

struct BlockLanes : LanesBase<BlockLanes> {
  static constexpr int width = block_size;
  SHARDMARK_BOTH static int lane() { return thread_of_block(); }
  template <class A, class Join>
  SHARDMARK_BOTH static A join(A mine, const Join& join_two) {
    mine = join_warp(mine, join_two);
#ifdef SHARDMARK_DEVICE_PASS
    SHARDMARK_SHARED(A, of_warp, [warps_per_block]);
    __syncthreads();  // all threads have read the array of the previous join
    if (lane() % warp_size == 0) of_warp[lane() / warp_size] = mine;
    __syncthreads();
    mine = of_warp[0];
    for (int warp = 1; warp < warps_per_block; ++warp) mine = join_two(mine, of_warp[warp]);
#endif
    return mine;
  }
  SHARDMARK_BOTH static LaneSums sums_of_lanes(std::int32_t mine) {
    LaneSums sums = sums_of_warp(lane() % warp_size, mine);
#ifdef SHARDMARK_DEVICE_PASS
    SHARDMARK_SHARED(std::int32_t, of_warp, [warps_per_block]);
    const int own = lane() / warp_size;
    __syncthreads();  // all threads have read the array of the previous sum
    if (lane() % warp_size == 0) of_warp[own] = sums.total;
    __syncthreads();
    sums.total = 0;
    for (int warp = 0; warp < warps_per_block; ++warp) {
      if (warp < own) sums.before += of_warp[warp];
      sums.total += of_warp[warp];
    }
#endif
    return sums;
  }
};

}  // namespace machine::cuda
