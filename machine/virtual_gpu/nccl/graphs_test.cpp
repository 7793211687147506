// Calls of NCCL in a captured stream (NCCL User Guide, "Using NCCL with CUDA Graphs").

#include <gtest/gtest.h>

#include "machine/virtual_gpu/nccl/testing.h"

namespace machine::virtual_gpu::nccl {
namespace {

constexpr std::size_t count = 1000;

template <class Calls>
cudaGraphExec_t captured_on(const Member& me, const Calls& calls) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  calls();
  EXPECT_EQ(cudaStreamEndCapture(me.stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  return executable;
}

// The calls of a capture have no effect on the peers until a launch. Each launch is a call.
TEST(NcclGraphs, EveryLaunchIsACall) {
  on_ranks(2, [](Member& me) {
    const Values<float> data(count, 1, 0);
    const cudaGraphExec_t graph = captured_on(me, [&] {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, me.comm, me.stream));
    });
    EXPECT_EQ(data.after(me.stream)[5], 1);
    for (int launch = 0; launch < 3; ++launch)
      EXPECT_EQ(cudaGraphLaunch(graph, me.stream), cudaSuccess);
    // Other calls of the communicator mix with launches.
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, me.comm, me.stream));
    EXPECT_EQ(cudaGraphLaunch(graph, me.stream), cudaSuccess);
    EXPECT_EQ(data.after(me.stream)[5], 32);
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  });
}

TEST(NcclGraphs, GroupsOfMessagesAreCaptured) {
  on_ranks(2, [](Member& me) {
    const Values<float> mine(count, 10 + me.rank, 0), theirs(count, -1, 0);
    const int peer = 1 - me.rank;
    const cudaGraphExec_t graph = captured_on(me, [&] {
      for (int round = 0; round < 2; ++round) {
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclSend(mine.data(), count, ncclFloat32, peer, me.comm, me.stream));
        EXPECT_NCCL(ncclRecv(theirs.data(), count, ncclFloat32, peer, me.comm, me.stream));
        EXPECT_NCCL(ncclGroupEnd());
      }
    });
    EXPECT_EQ(theirs.after(me.stream)[0], -1);
    for (int launch = 0; launch < 2; ++launch)
      EXPECT_EQ(cudaGraphLaunch(graph, me.stream), cudaSuccess);
    EXPECT_EQ(theirs.after(me.stream)[count - 1], 10 + peer);
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  });
}

TEST(NcclGraphs, AnInvalidatedCaptureRefusesCalls) {
  on_ranks(1, [](Member& me) {
    const Values<float> data(count, 1, 0);
    EXPECT_EQ(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(me.stream), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(
        ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, me.comm, me.stream),
        ncclUnhandledCudaError);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(me.stream, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  });
}

}  // namespace
}  // namespace machine::virtual_gpu::nccl
