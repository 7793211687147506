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
};

}  // namespace machine::cuda
