// Memory and events between processes. The test starts its own program again as the peer, because
// CUDA cannot be used in a forked child.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

#include "machine/virtual_gpu/configuration.h"

namespace machine::virtual_gpu {
namespace {

constexpr int count = 1000, rounds = 20;

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t sent, taken;
};

template <class T>
void put(int socket, const T& value) {
  ASSERT_EQ(::write(socket, &value, sizeof value), static_cast<ssize_t>(sizeof value));
}
template <class T>
void get(int socket, T& value) {
  ASSERT_EQ(::recv(socket, &value, sizeof value, MSG_WAITALL), static_cast<ssize_t>(sizeof value));
}

// Both sides: two events, memory for one message, a stream.
struct Side {
  explicit Side(int device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), count * sizeof(int)), cudaSuccess);
    for (cudaEvent_t* event : {&sent, &taken})
      EXPECT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventInterprocess),
                cudaSuccess);
  }
  ~Side() {
    for (const cudaEvent_t event : {sent, taken}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  Handles handles() const {
    Handles result{};
    EXPECT_EQ(cudaIpcGetMemHandle(&result.memory, memory + 5), cudaSuccess);
    EXPECT_EQ(cudaIpcGetEventHandle(&result.sent, sent), cudaSuccess);
    EXPECT_EQ(cudaIpcGetEventHandle(&result.taken, taken), cudaSuccess);
    return result;
  }
  cudaStream_t stream = nullptr;
  int* memory = nullptr;
  cudaEvent_t sent = nullptr, taken = nullptr;
};

// The peer reads each message from this process's memory after `sent`, and marks it as `taken`.
// Between the calls, only the descriptors pass through the socket, as a link does it.
TEST(Ipc, DISABLED_Peer) {
  const int socket = std::atoi(std::getenv("SHARDMARK_TEST_SOCKET"));
  Side mine(1);
  Handles theirs;
  get(socket, theirs);
  put(socket, mine.handles());
  void* base = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&base, theirs.memory, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  void* again = nullptr;
  ASSERT_EQ(cudaIpcOpenMemHandle(&again, theirs.memory, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  EXPECT_EQ(base, again);
  EXPECT_EQ(cudaIpcCloseMemHandle(again), cudaSuccess);
  cudaEvent_t sent = nullptr;
  ASSERT_EQ(cudaIpcOpenEventHandle(&sent, theirs.sent), cudaSuccess);
  for (int round = 0; round < rounds; ++round) {
    char queued;
    get(socket, queued);
    EXPECT_EQ(cudaStreamWaitEvent(mine.stream, sent, 0), cudaSuccess);
    EXPECT_EQ(
        cudaMemcpyAsync(mine.memory, base, count * sizeof(int), cudaMemcpyDefault, mine.stream),
        cudaSuccess);
    EXPECT_EQ(cudaEventRecord(mine.taken, mine.stream), cudaSuccess);
    put(socket, queued);
    if (round % 3 != 0) continue;
    int got[count];
    EXPECT_EQ(cudaMemcpyAsync(got, mine.memory, sizeof got, cudaMemcpyDefault, mine.stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(mine.stream), cudaSuccess);
    for (int i = 0; i < count; ++i) ASSERT_EQ(got[i], round * 10'000 + i);
  }
  char over;
  get(socket, over);
  EXPECT_EQ(cudaStreamSynchronize(mine.stream), cudaSuccess);
  EXPECT_EQ(cudaIpcCloseMemHandle(base), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(mine.memory, base, 8, cudaMemcpyDefault, mine.stream),
            cudaErrorInvalidValue);
}

// Starts a disabled test as a process. Sets the socket to it.
pid_t start_peer(const char* test, const char* gpus, int& socket) {
  int sockets[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::setenv("SHARDMARK_TEST_SOCKET", std::to_string(sockets[1]).c_str(), 1);
    if (gpus) ::setenv("SHARDMARK_VIRTUAL_GPUS", gpus, 1);
    const std::string filter = std::string("--gtest_filter=Ipc.DISABLED_") + test;
    ::execl("/proc/self/exe", "virtual_gpu_test", filter.c_str(), "--gtest_also_run_disabled_tests",
            static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ::close(sockets[1]);
  socket = sockets[0];
  const timeval patience{20, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return peer;
}

void exchange_with_another_process() {
  int socket = -1;
  const pid_t peer = start_peer("Peer", nullptr, socket);
  {
    Side mine(0);
    put(socket, mine.handles());
    Handles theirs;
    get(socket, theirs);
    cudaEvent_t taken = nullptr;
    ASSERT_EQ(cudaIpcOpenEventHandle(&taken, theirs.taken), cudaSuccess);
    int* message = nullptr;  // one per round: a copy from it runs late
    ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&message), rounds * count * sizeof(int), 0),
              cudaSuccess);
    for (int round = 0; round < rounds; ++round) {
      int* from = message + round * count;
      for (int i = 0; i < count; ++i) from[i] = round * 10'000 + i;
      if (round > 0) {
        char done;
        get(socket, done);
        EXPECT_EQ(cudaStreamWaitEvent(mine.stream, taken, 0), cudaSuccess);
      }
      EXPECT_EQ(
          cudaMemcpyAsync(mine.memory, from, count * sizeof(int), cudaMemcpyDefault, mine.stream),
          cudaSuccess);
      EXPECT_EQ(cudaEventRecord(mine.sent, mine.stream), cudaSuccess);
      put(socket, 'q');
    }
    char done;
    get(socket, done);
    put(socket, 'e');
    if (testing::Test::HasFailure()) ::kill(peer, SIGKILL);  // it may wait forever
    int status = 0;
    ::waitpid(peer, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(cudaStreamSynchronize(mine.stream), cudaSuccess);
    EXPECT_EQ(cudaFree(mine.memory), cudaSuccess);
  }
  ::close(socket);
}

TEST(Ipc, MemoryAndEventsReachAnotherProcess) { exchange_with_another_process(); }

// New events use what older ones have left.
TEST(Ipc, EventsReachAnotherProcessAfterOlderOnesHaveEnded) {
  exchange_with_another_process();
  if (!HasFatalFailure()) exchange_with_another_process();
}

TEST(Ipc, DISABLED_PeerOfAnotherHost) {
  Side mine(0);
  Handles theirs;
  get(std::atoi(std::getenv("SHARDMARK_TEST_SOCKET")), theirs);
  void* base = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&base, theirs.memory, cudaIpcMemLazyEnablePeerAccess),
            cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaIpcOpenEventHandle(&event, theirs.sent), cudaErrorInvalidResourceHandle);
  const std::string text = cudaGetErrorString(cudaGetLastError());
  EXPECT_NE(text.find("a handle of another host"), std::string::npos) << text;
}
TEST(Ipc, HandlesStayOnTheirHost) {
  int socket = -1;
  const pid_t peer = start_peer("PeerOfAnotherHost", "2,host=other", socket);
  const Side mine(0);
  put(socket, mine.handles());
  int status = 0;
  ::waitpid(peer, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::close(socket);
}

TEST(Ipc, AProcessCannotOpenItsOwnHandles) {
  Side mine(0);
  const Handles handles = mine.handles();
  void* base = nullptr;
  cudaEvent_t event = nullptr;
  EXPECT_NE(cudaIpcOpenMemHandle(&base, handles.memory, cudaIpcMemLazyEnablePeerAccess),
            cudaSuccess);
  EXPECT_NE(cudaIpcOpenEventHandle(&event, handles.sent), cudaSuccess);
  cudaEvent_t plain = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming), cudaSuccess);
  cudaIpcEventHandle_t handle;
  EXPECT_EQ(cudaIpcGetEventHandle(&handle, plain), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

}  // namespace
}  // namespace machine::virtual_gpu
