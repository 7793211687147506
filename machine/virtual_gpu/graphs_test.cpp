// Graphs compared with CUDA's documentation (CUDA C++ Programming Guide, "Creating a Graph Using
// Stream Capture"; CUDA Runtime API, "Stream Management").

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/kernel_language.h"

namespace machine::virtual_gpu {
namespace {

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

constexpr int count = 100;

void set(int* out, int value) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) out[i] = value;
}
// out = 10 out + in
void append_digit(int* out, const int* in) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) out[i] = 10 * out[i] + in[i];
}

class Graphs : public testing::Test {
 protected:
  static constexpr std::size_t bytes = count * sizeof(int);

  void SetUp() override {
    EXPECT_CUDA(cudaSetDevice(0));
    for (cudaStream_t& stream : streams_)
      EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_)
      EXPECT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int*& memory : device_) {
      EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory), bytes));
      queue_set(memory, 0, streams_[0]);
    }
    EXPECT_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&host_), bytes, cudaHostAllocDefault));
    EXPECT_CUDA(cudaStreamSynchronize(streams_[0]));
  }
  void TearDown() override {
    mend_device(0);
    for (cudaStream_t stream : streams_) EXPECT_CUDA(cudaStreamDestroy(stream));
    for (cudaEvent_t event : events_) EXPECT_CUDA(cudaEventDestroy(event));
    for (int* memory : device_) EXPECT_CUDA(cudaFree(memory));
    EXPECT_CUDA(cudaFreeHost(host_));
    cudaGetLastError();
  }

  static void queue_set(int* memory, int value, cudaStream_t stream) {
    SHARDMARK_LAUNCH(set, 1, 128, 0, stream, memory, value);
    EXPECT_CUDA(cudaGetLastError());
  }
  static void queue_append(int* out, const int* in, cudaStream_t stream) {
    SHARDMARK_LAUNCH(append_digit, 1, 128, 0, stream, out, in);
    EXPECT_CUDA(cudaGetLastError());
  }
  int read(const int* memory, cudaStream_t stream) {
    EXPECT_CUDA(cudaMemcpyAsync(host_, memory, bytes, cudaMemcpyDefault, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    for (int i = 1; i < count; ++i) EXPECT_EQ(host_[i], host_[0]);
    return host_[0];
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    EXPECT_CUDA(cudaStreamBeginCapture(streams_[0], mode));
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(streams_[0], &graph))
        << cudaGetErrorString(cudaGetLastError());
    EXPECT_CUDA(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    return executable;
  }
  // Expects that a call has invalidated the capture.
  void expect_invalidated() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_CUDA(cudaStreamIsCapturing(streams_[0], &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(cudaMemcpyAsync(host_, device_[0], bytes, cudaMemcpyDefault, streams_[0]),
              cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_CUDA(cudaStreamIsCapturing(streams_[0], &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    cudaGetLastError();
  }

  cudaStream_t streams_[3];
  cudaEvent_t events_[2];
  int* device_[3];
  int* host_;
};

TEST_F(Graphs, CapturedWorkRunsOnlyInLaunches) {
  begin();
  queue_set(device_[1], 7, streams_[0]);
  queue_append(device_[0], device_[1], streams_[0]);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_CUDA(cudaStreamIsCapturing(streams_[0], &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(read(device_[0], streams_[1]), 0);
  const cudaGraphExec_t graph = end();
  EXPECT_EQ(read(device_[0], streams_[0]), 0);
  EXPECT_CUDA(cudaGraphLaunch(graph, streams_[0]));
  EXPECT_EQ(read(device_[0], streams_[0]), 7);
  // Also in other streams. Launches of one graph run one after another.
  for (int launch = 0; launch < 2; ++launch) EXPECT_CUDA(cudaGraphLaunch(graph, streams_[launch]));
  EXPECT_EQ(read(device_[0], streams_[1]), 777);
  EXPECT_CUDA(cudaGraphExecDestroy(graph));
  EXPECT_EQ(cudaGraphLaunch(graph, streams_[0]), cudaErrorInvalidValue);
}

TEST_F(Graphs, LazyLaunchesWaitToo) {
  if (configuration().order != Order::lazy) GTEST_SKIP() << "another order";
  begin();
  queue_set(device_[0], 7, streams_[0]);
  const cudaGraphExec_t graph = end();
  EXPECT_CUDA(cudaGraphLaunch(graph, streams_[0]));
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  EXPECT_EQ(read(device_[0], streams_[0]), 7);
  EXPECT_CUDA(cudaGraphExecDestroy(graph));
}

// A stream that waits for an event of the capture joins it. The order of the waits is kept.
TEST_F(Graphs, EventsJoinStreamsToACapture) {
  begin();
  queue_set(device_[1], 1, streams_[0]);
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], events_[0], 0));
  queue_append(device_[0], device_[1], streams_[1]);  // 1
  queue_set(device_[2], 2, streams_[1]);
  EXPECT_CUDA(cudaEventRecord(events_[1], streams_[1]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[0], events_[1], 0));
  queue_append(device_[0], device_[2], streams_[0]);  // 2
  const cudaGraphExec_t graph = end();
  for (int launch = 0; launch < 3; ++launch) EXPECT_CUDA(cudaGraphLaunch(graph, streams_[2]));
  EXPECT_EQ(read(device_[0], streams_[2]), 121212);
  // The streams are out of the capture.
  queue_set(device_[0], 5, streams_[1]);
  EXPECT_EQ(read(device_[0], streams_[1]), 5);
  EXPECT_CUDA(cudaGraphExecDestroy(graph));
}

// Branches without a wait between them run in any order. In the order lazy, a branch runs late if
// no operation waits for it yet.
TEST_F(Graphs, BranchesAreNotOrdered) {
  if (configuration().order != Order::lazy) GTEST_SKIP() << "another order";
  begin();
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], events_[0], 0));
  queue_set(device_[1], 4, streams_[1]);
  queue_append(device_[0], device_[1], streams_[0]);  // reads what the branch writes
  EXPECT_CUDA(cudaEventRecord(events_[1], streams_[1]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[0], events_[1], 0));
  const cudaGraphExec_t graph = end();
  EXPECT_CUDA(cudaGraphLaunch(graph, streams_[0]));
  EXPECT_EQ(read(device_[0], streams_[0]), 0);
  EXPECT_EQ(read(device_[1], streams_[0]), 4);
  EXPECT_CUDA(cudaGraphExecDestroy(graph));
}

TEST_F(Graphs, UnjoinedWorkIsAnError) {
  begin();
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], events_[0], 0));
  queue_set(device_[0], 1, streams_[1]);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(streams_[1], &graph), cudaErrorStreamCaptureUnmatched);
  expect_invalidated();
  begin();
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[1], events_[0], 0));
  queue_set(device_[0], 1, streams_[1]);
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_CUDA(cudaStreamSynchronize(streams_[1]));
  EXPECT_EQ(read(device_[0], streams_[0]), 0);
}

TEST_F(Graphs, CapturedStreamsCannotBeAwaited) {
  begin();
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorStreamCaptureUnsupported);
  expect_invalidated();
  begin();
  EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorStreamCaptureUnsupported);
  expect_invalidated();
  begin();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
  expect_invalidated();
  begin();
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaErrorCapturedEvent);
  expect_invalidated();
  EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(streams_[1], events_[0], 0), cudaErrorCapturedEvent);
  // A record outside of a capture makes the event usable.
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[0]));
  EXPECT_CUDA(cudaEventSynchronize(events_[0]));
}

TEST_F(Graphs, MemoryIsNotAllocatedInACapture) {
  void* memory = nullptr;
  begin();
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
  expect_invalidated();
  begin();
  EXPECT_EQ(cudaFree(device_[2]), cudaErrorStreamCaptureUnsupported);
  expect_invalidated();
  // Another thread can, if the capture is of this thread. In the relaxed mode every thread can.
  begin();
  std::thread([&] { EXPECT_CUDA(cudaMalloc(&memory, 8)); }).join();
  EXPECT_CUDA(cudaGraphExecDestroy(end()));
  EXPECT_CUDA(cudaFree(memory));
  begin(cudaStreamCaptureModeRelaxed);
  EXPECT_CUDA(cudaMalloc(&memory, 8));
  EXPECT_CUDA(cudaGraphExecDestroy(end()));
  begin(cudaStreamCaptureModeGlobal);
  std::thread([&] {
    void* other = nullptr;
    EXPECT_EQ(cudaMalloc(&other, 8), cudaErrorStreamCaptureUnsupported);
  }).join();
  expect_invalidated();
  EXPECT_CUDA(cudaFree(memory));
  // A thread may say that captures do not depend on its calls.
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    begin(mode);
    cudaStreamCaptureMode own = cudaStreamCaptureModeRelaxed;
    EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&own));
    EXPECT_EQ(own, cudaStreamCaptureModeGlobal);
    EXPECT_CUDA(cudaMalloc(&memory, 8));
    EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&own));
    EXPECT_EQ(own, cudaStreamCaptureModeRelaxed);
    EXPECT_EQ(cudaFree(memory), cudaErrorStreamCaptureUnsupported);
    expect_invalidated();
    EXPECT_CUDA(cudaFree(memory));
  }
  begin(cudaStreamCaptureModeGlobal);
  std::thread([&] {
    cudaStreamCaptureMode own = cudaStreamCaptureModeThreadLocal;
    EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&own));
    EXPECT_CUDA(cudaMalloc(&memory, 8));
  }).join();
  EXPECT_CUDA(cudaGraphExecDestroy(end()));
  EXPECT_CUDA(cudaFree(memory));
}

TEST_F(Graphs, DependenciesStayInACapture) {
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[0], events_[1], 0));  // never recorded
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[1]));
  begin();
  EXPECT_CUDA(cudaStreamWaitEvent(streams_[0], events_[1], 0));
  EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[0], 0), cudaErrorStreamCaptureIsolation);
  expect_invalidated();
  // Two captures do not merge.
  begin();
  EXPECT_CUDA(cudaStreamBeginCapture(streams_[1], cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(cudaEventRecord(events_[0], streams_[1]));
  EXPECT_EQ(cudaStreamWaitEvent(streams_[0], events_[0], 0), cudaErrorStreamCaptureMerge);
  expect_invalidated();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(streams_[1], &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Graphs, TheLegacyStreamIsNotCaptured) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal),
            cudaErrorStreamCaptureUnsupported);
  cudaGetLastError();
  begin();
  queue_set(device_[1], 1, nullptr);  // streams_[0] does not block
  EXPECT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal),
            cudaErrorIllegalState);
  EXPECT_CUDA(cudaGraphExecDestroy(end()));
  cudaStream_t blocking = nullptr;
  EXPECT_CUDA(cudaStreamCreate(&blocking));
  EXPECT_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal));
  SHARDMARK_LAUNCH(set, 1, 128, 0, nullptr, device_[1], 1);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_CUDA(cudaStreamDestroy(blocking));
}

TEST_F(Graphs, ACaptureEndsInItsThread) {
  begin();
  std::thread([&] {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_CUDA(cudaGraphExecDestroy(end()));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaErrorInvalidValue);
}

TEST_F(Graphs, FreedMemoryIsNoticedInALaunch) {
  void* freed = nullptr;
  EXPECT_CUDA(cudaMalloc(&freed, bytes));
  begin();
  EXPECT_CUDA(cudaMemcpyAsync(device_[0], freed, bytes, cudaMemcpyDefault, streams_[0]));
  const cudaGraphExec_t graph = end();
  EXPECT_CUDA(cudaFree(freed));
  EXPECT_CUDA(cudaGraphLaunch(graph, streams_[0]));
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorIllegalAddress);
  mend_device(0);
  EXPECT_CUDA(cudaGraphExecDestroy(graph));
}

}  // namespace
}  // namespace machine::virtual_gpu
