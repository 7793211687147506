// The kernel language: threads, barriers, shuffles, votes, shared memory, faults.

#include "machine/virtual_gpu/block.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/kernel_language.h"

namespace machine::virtual_gpu {
namespace {

Outcome run(dim3 grid, dim3 block, const std::function<void()>& thread, std::size_t shared = 0) {
  return run_grid({"test", grid, block, shared}, thread);
}

TEST(Block, EveryThreadRunsOnce) {
  std::vector<int> runs(2 * 3 * 4 * 5 * 6);
  const Outcome outcome = run({2, 3, 1}, {4, 5, 6}, [&] {
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    ++runs[block * 120 + thread];
  });
  EXPECT_EQ(outcome.status, cudaSuccess);
  for (const int count : runs) EXPECT_EQ(count, 1);
}

// Each thread reads a value that the thread after it writes.
TEST(Block, BarriersOrderWritesAndReads) {
  std::vector<int> values(1024), seen(1024);
  const Outcome outcome = run(1, 1024, [&] {
    for (int round = 0; round < 5; ++round) {
      values[threadIdx.x] = round * 10'000 + static_cast<int>(threadIdx.x);
      __syncthreads();
      seen[threadIdx.x] = values[(threadIdx.x + 1) % 1024];
      EXPECT_EQ(seen[threadIdx.x], round * 10'000 + static_cast<int>((threadIdx.x + 1) % 1024));
      __syncthreads();
    }
  });
  EXPECT_EQ(outcome.status, cudaSuccess) << outcome.text;
}

TEST(Block, AMissingBarrierShows) {
  std::vector<int> values(64, -1);
  int stale = 0;
  run(1, 64, [&] {
    values[threadIdx.x] = 1;
    stale += values[63 - threadIdx.x] != 1;
  });
  EXPECT_EQ(stale, 32);
}

TEST(Block, ThreadsThatEndedAreNotAwaited) {
  int passed = 0;
  const Outcome outcome = run(1, 100, [&] {
    if (threadIdx.x % 3 == 0) return;
    __syncthreads();
    ++passed;
  });
  EXPECT_EQ(outcome.status, cudaSuccess) << outcome.text;
  EXPECT_EQ(passed, 66);
}

TEST(Block, ShufflesMoveValuesBetweenLanes) {
  const Outcome outcome = run(2, 96, [&] {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const double mine = 1000.0 * warp + lane;
    EXPECT_EQ(__shfl_xor_sync(~0u, mine, 5), 1000.0 * warp + (lane ^ 5));
    EXPECT_EQ(__shfl_sync(~0u, static_cast<int>(lane), 7), 7);
    EXPECT_EQ(__shfl_sync(~0u, static_cast<int>(lane), 3, 8), static_cast<int>(lane / 8 * 8 + 3));
    EXPECT_EQ(__shfl_up_sync(~0u, lane, 2), lane < 2 ? lane : lane - 2);
    EXPECT_EQ(__shfl_down_sync(~0u, lane, 2, 16), lane % 16 >= 14 ? lane : lane + 2);
    float sum = 1;
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    EXPECT_EQ(sum, 32);
  });
  EXPECT_EQ(outcome.status, cudaSuccess) << outcome.text;
}

TEST(Block, VotesSeeEveryLane) {
  const Outcome outcome = run(1, 64, [&] {
    const unsigned lane = threadIdx.x % 32;
    EXPECT_EQ(__ballot_sync(~0u, lane % 4 == 1), 0x22222222u);
    EXPECT_TRUE(__any_sync(~0u, lane == 31));
    EXPECT_FALSE(__any_sync(~0u, false));
    EXPECT_TRUE(__all_sync(~0u, true));
    EXPECT_FALSE(__all_sync(~0u, lane != 9));
    if (lane < 16) {
      EXPECT_EQ(__ballot_sync(0xffffu, lane == 2), 4u);
    }
  });
  EXPECT_EQ(outcome.status, cudaSuccess) << outcome.text;
}

TEST(Block, DivergentWarpsFail) {
  const auto status = [](const std::function<void()>& thread) { return run(1, 32, thread); };
  EXPECT_EQ(status([] {
              if (threadIdx.x != 3) __shfl_sync(~0u, 1, 0);
            }).status,
            cudaErrorLaunchFailure);
  EXPECT_EQ(status([] {
              if (threadIdx.x < 16)
                __shfl_sync(~0u, 1, 0);
              else
                __ballot_sync(~0u, true);
            }).status,
            cudaErrorLaunchFailure);
  const Outcome outcome = status([] { __shfl_sync(1u << 4, 1, 0); });
  EXPECT_EQ(outcome.status, cudaErrorIllegalInstruction);
  EXPECT_NE(outcome.text.find("test, block (0, 0, 0), thread ("), std::string::npos)
      << outcome.text;
}

// Lane 0 of each warp waits for its warp, whose other lanes wait for the block.
TEST(Block, ADeadlockIsReported) {
  const Outcome outcome = run(1, 64, [] {
    if (threadIdx.x % 32 == 0) __ballot_sync(~0u, true);
    __syncthreads();
  });
  EXPECT_EQ(outcome.status, cudaErrorLaunchFailure);
  EXPECT_NE(outcome.text.find("62 threads wait at __syncthreads, 2 in a warp's operation"),
            std::string::npos)
      << outcome.text;
}

// The memory of a block ends at a page that faults. It holds NaN at the start of each block.
TEST(Block, SharedMemoryIsCheckedAndNotCleared) {
  int not_nan = 0;
  const auto fill = [&] {
    auto* values = reinterpret_cast<float*>(cuda::dynamic_shared());
    not_nan += values[threadIdx.x] == values[threadIdx.x];
    values[threadIdx.x] = 1;
  };
  EXPECT_EQ(run(3, 32, fill, 128).status, cudaSuccess);
  EXPECT_EQ(not_nan, 0);
  const Outcome outcome = run(3, 33, fill, 128);
  EXPECT_EQ(outcome.status, cudaErrorIllegalAddress);
  EXPECT_NE(outcome.text.find("thread (32, 0, 0)"), std::string::npos) << outcome.text;
  EXPECT_EQ(run(3, 32, fill, 128).status, cudaSuccess);
}

TEST(Block, StaticSharedMemoryBelongsToTheBlock) {
  std::vector<int> sums(4);
  const Outcome outcome = run(4, 64, [&] {
    SHARDMARK_SHARED(int, values, [64]);
    EXPECT_EQ(values[threadIdx.x], -1);  // the bits of NaN
    values[threadIdx.x] = static_cast<int>(threadIdx.x + blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x] = std::accumulate(values, values + 64, 0);
  });
  EXPECT_EQ(outcome.status, cudaSuccess) << outcome.text;
  for (int block = 0; block < 4; ++block) EXPECT_EQ(sums[block], 2016 + 64 * block);
}

TEST(Block, AtomicsAdd) {
  int sum = 0;
  EXPECT_EQ(run(10, 100, [&] { atomicAdd(&sum, static_cast<int>(threadIdx.x)); }).status,
            cudaSuccess);
  EXPECT_EQ(sum, 49'500);
}

}  // namespace
}  // namespace machine::virtual_gpu
