// Making and ending communicators of the virtual NCCL, as threads and as processes. The processes
// are this program started again, because CUDA cannot be used in a forked child.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "machine/base/futex.h"
#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/nccl/testing.h"

namespace machine::virtual_gpu::nccl {
namespace {

constexpr std::size_t count = 1000;

ncclResult_t reduce(const Member& me, const Values<float>& in, const Values<float>& out) {
  return ncclAllReduce(in.data(), out.data(), count, ncclFloat32, ncclSum, me.comm, me.stream);
}

// ---- as threads

// A non-blocking communicator queues only when its state has become ncclSuccess.
TEST(Communicators, NonBlockingCallsArePolled) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([id, rank] {
      EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
      Member me{rank, 2};
      EXPECT_EQ(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking), cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      EXPECT_EQ(ncclCommInitRankConfig(&me.comm, 2, id, rank, &config), ncclInProgress);
      EXPECT_EQ(polled(me.comm), ncclSuccess);
      const Values<float> in(count, 1 + rank), out(count, -1);
      for (int round = 0; round < 5; ++round) {
        EXPECT_EQ(reduce(me, in, out), ncclInProgress);
        EXPECT_EQ(reduce(me, in, out), ncclInvalidArgument);
        EXPECT_EQ(cudaStreamQuery(me.stream), cudaSuccess);
        EXPECT_EQ(polled(me.comm), ncclSuccess);
        EXPECT_EQ(out.after(me.stream)[0], 3);
      }
      EXPECT_EQ(ncclCommFinalize(me.comm), ncclInProgress);
      EXPECT_EQ(polled(me.comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(me.comm));
      EXPECT_EQ(ncclCommDestroy(me.comm), ncclInvalidArgument);
      EXPECT_EQ(cudaStreamDestroy(me.stream), cudaSuccess);
    });
  for (std::thread& thread : threads) thread.join();
}

// A blocking communicator of a non-blocking one, and two halves in the opposite order.
TEST(Communicators, AreSplit) {
  on_ranks(4, [](Member& me) {
    const Values<float> in(count, 1 + me.rank), out(count, -1);
    for (int round = 0; round < 3; ++round) {
      Member part = me;
      part.comm = nullptr;
      EXPECT_NCCL(ncclCommSplit(me.comm, me.rank % 2, -me.rank, &part.comm, nullptr));
      EXPECT_NCCL(reduce(part, in, out));
      EXPECT_EQ(out.after(me.stream)[0], me.rank % 2 == 0 ? 4 : 6);
      EXPECT_NCCL(
          ncclBroadcast(in.data(), out.data(), count, ncclFloat32, 0, part.comm, me.stream));
      EXPECT_EQ(out.after(me.stream)[0], me.rank % 2 == 0 ? 3 : 4);
      EXPECT_NCCL(ncclCommDestroy(part.comm));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      ncclComm_t polling = nullptr;
      EXPECT_NCCL(
          ncclCommSplit(me.comm, me.rank == 3 ? NCCL_SPLIT_NOCOLOR : 7, 0, &polling, &config));
      if (me.rank == 3) {
        EXPECT_EQ(polling, nullptr);
        continue;
      }
      part.comm = polling;
      EXPECT_EQ(reduce(part, in, out), ncclInProgress);
      EXPECT_EQ(polled(polling), ncclSuccess);
      EXPECT_EQ(out.after(me.stream)[0], 6);
      config.blocking = 1;
      // NCCL returns success, and the communicator only after polling.
      EXPECT_NCCL(ncclCommSplit(polling, 0, me.rank, &part.comm, &config));
      EXPECT_EQ(part.comm, nullptr);
      EXPECT_EQ(polled(polling), ncclSuccess);
      EXPECT_NCCL(reduce(part, in, out));
      EXPECT_EQ(out.after(me.stream)[0], 6);
      EXPECT_NCCL(ncclCommDestroy(part.comm));
      EXPECT_NCCL(ncclCommDestroy(polling));
    }
  });
}

// Often, because a rank may abort between two looks of the other one at it.
TEST(Communicators, RejectTwoRanksOfADevice) {
  for (int round = 0; round < 1000; ++round) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([id, rank] {
        EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
        ncclComm_t comm = nullptr;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInvalidUsage);
        EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("Duplicate GPU"), std::string::npos);
        EXPECT_EQ(comm, nullptr);
      });
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) return;
  }
}

// The operation ends with the abort, and leaves no result.
TEST(Communicators, AnAbortEndsOperations) {
  on_ranks(
      2,
      [](Member& me) {
        const Values<float> in(count, 1 + me.rank), out(count, -1);
        if (me.rank == 1) {
          EXPECT_NCCL(ncclCommAbort(std::exchange(me.comm, nullptr)));
          me.meet();
          return;
        }
        EXPECT_NCCL(reduce(me, in, out));
        me.meet();
        ncclResult_t state = ncclSuccess;
        std::thread waits([&] { me.synchronize(); });
        while (state == ncclSuccess) EXPECT_NCCL(ncclCommGetAsyncError(me.comm, &state));
        EXPECT_EQ(state, ncclRemoteError);
        EXPECT_NE(std::string(ncclGetLastError(me.comm)).find("rank 1 has aborted"),
                  std::string::npos);
        EXPECT_NCCL(ncclCommAbort(std::exchange(me.comm, nullptr)));
        waits.join();
        EXPECT_NE(out.after(me.stream)[0], 3);
      },
      false);
}

// ---- as processes

struct Meeting {
  Word ready;
  ncclUniqueId id;
};
using Body = void (*)(Member& me);
const std::map<std::string, Body> bodies = {
    {"collectives",
     [](Member& me) {
       const Values<float> in(count, 1 + me.rank, 1), out(count, -1), got(count, -1);
       for (int round = 0; round < 20; ++round) {
         EXPECT_NCCL(reduce(me, in, out));
         EXPECT_NCCL(ncclGroupStart());
         EXPECT_NCCL(
             ncclSend(out.data(), count, ncclFloat32, (me.rank + 1) % me.size, me.comm, me.stream));
         EXPECT_NCCL(ncclRecv(got.data(), count, ncclFloat32, (me.rank + me.size - 1) % me.size,
                              me.comm, me.stream));
         EXPECT_NCCL(ncclGroupEnd());
         if (round % 7 == me.rank) me.synchronize();
       }
       EXPECT_EQ(got.after(me.stream)[2], me.size * (me.size + 1) / 2 + 2 * me.size);
     }},
    // Rank 1 ends without a word.
    {"dead_peer",
     [](Member& me) {
       const Values<float> in(count, 1), out(count, -1);
       EXPECT_NCCL(reduce(me, in, out));
       me.synchronize();
       if (me.rank == 1) ::_exit(0);
       EXPECT_NCCL(reduce(me, in, out));
       std::thread waits([&] { me.synchronize(); });
       ncclResult_t state = ncclSuccess;
       while (state == ncclSuccess) EXPECT_NCCL(ncclCommGetAsyncError(me.comm, &state));
       EXPECT_EQ(state, ncclRemoteError);
       const std::string text = ncclGetLastError(me.comm);
       EXPECT_NE(text.find("rank 1 (process"), std::string::npos) << text;
       EXPECT_NCCL(ncclCommAbort(std::exchange(me.comm, nullptr)));
       waits.join();
     }},
    // Rank 1 does not call.
    {"missing_call",
     [](Member& me) {
       const Values<float> in(count, 1), out(count, -1);
       if (me.rank == 0) {
         EXPECT_NCCL(reduce(me, in, out));
         EXPECT_NE(cudaStreamSynchronize(me.stream), cudaSuccess);
         const std::string text = cudaGetErrorString(cudaErrorLaunchFailure);
         EXPECT_NE(text.find("rank 0 waited 2 s in ncclAllReduce of 1000 float32, sum for rank 1"),
                   std::string::npos)
             << text;
       }
       if (me.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
       EXPECT_NCCL(ncclCommAbort(std::exchange(me.comm, nullptr)));
       mend_device(me.rank);
     }},
    // Each rank reads from the other once in an all-reduce. The third fails.
    {"lost_link",
     [](Member& me) {
       const Values<float> in(count, 1), out(count, -1);
       EXPECT_NCCL(reduce(me, in, out));
       me.synchronize();
       EXPECT_NCCL(reduce(me, in, out));
       EXPECT_NCCL(reduce(me, in, out));
       const cudaError_t status = cudaStreamSynchronize(me.stream);
       const std::string text = cudaGetErrorString(status);
       // The other rank learns it from its peer, which has failed and then ends its part.
       if (status == cudaErrorNvlinkUncorrectable) {
         EXPECT_NE(text.find("the link between rank " + std::to_string(me.rank)), std::string::npos)
             << text;
       } else {
         EXPECT_TRUE(text.find("has failed") != std::string::npos ||
                     text.find("has aborted") != std::string::npos)
             << text;
       }
       EXPECT_NCCL(ncclCommAbort(std::exchange(me.comm, nullptr)));
       mend_device(me.rank);
     }},
    {"float8",
     [](Member& me) {
       const Values<__nv_fp8_e4m3> in(count, 1), out(count);
       EXPECT_EQ(
           ncclAllReduce(in.data(), out.data(), count, ncclFloat8e4m3, ncclSum, me.comm, me.stream),
           ncclInvalidArgument);
       EXPECT_NCCL(
           ncclBroadcast(in.data(), out.data(), count, ncclFloat8e4m3, 0, me.comm, me.stream));
       EXPECT_EQ(out.after(me.stream)[0], 1);
     }},
};

// One rank, as a process.
TEST(CommunicatorsOfProcesses, DISABLED_Rank) {
  const int file = std::atoi(std::getenv("SHARDMARK_TEST_FILE"));
  Member me{std::atoi(std::getenv("SHARDMARK_TEST_RANK")),
            std::atoi(std::getenv("SHARDMARK_TEST_RANKS"))};
  auto& meeting = *static_cast<Meeting*>(
      ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  EXPECT_EQ(cudaSetDevice(me.rank % configuration().devices), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking), cudaSuccess);
  if (me.rank == 0) {
    ASSERT_EQ(ncclGetUniqueId(&meeting.id), ncclSuccess);
    meeting.ready = 1;
    wake(meeting.ready);
  }
  while (meeting.ready == 0) sleep_on(meeting.ready, 0, 1);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ASSERT_EQ(ncclCommInitRankConfig(&me.comm, me.size, meeting.id, me.rank, &config), ncclSuccess);
  bodies.at(std::getenv("SHARDMARK_TEST_BODY"))(me);
  if (me.comm) {
    EXPECT_NCCL(ncclCommFinalize(me.comm));
    EXPECT_NCCL(ncclCommDestroy(me.comm));
  }
}

// per_host: ranks of a host; 0: all.
void on_processes(int ranks, const char* body, const std::string& gpus, const char* nccl,
                  int per_host = 0) {
  const int file = ::memfd_create("meeting", 0);
  ASSERT_EQ(::ftruncate(file, sizeof(Meeting)), 0);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("SHARDMARK_TEST_FILE", std::to_string(file).c_str(), 1);
      ::setenv("SHARDMARK_TEST_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("SHARDMARK_TEST_RANKS", std::to_string(ranks).c_str(), 1);
      ::setenv("SHARDMARK_TEST_BODY", body, 1);
      const std::string host = per_host ? ",host=" + std::to_string(rank / per_host) : "";
      ::setenv("SHARDMARK_VIRTUAL_GPUS", (gpus + host).c_str(), 1);
      ::setenv("SHARDMARK_VIRTUAL_NCCL", nccl, 1);
      ::execl("/proc/self/exe", "virtual_gpu_test",
              "--gtest_filter=CommunicatorsOfProcesses.DISABLED_Rank",
              "--gtest_also_run_disabled_tests", "--gtest_brief=1", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    processes.push_back(child);
  }
  for (const pid_t child : processes) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  ::close(file);
}

TEST(CommunicatorsOfProcesses, ReduceAndExchange) { on_processes(4, "collectives", "4", ""); }
TEST(CommunicatorsOfProcesses, MayShareADeviceIfConfigured) {
  on_processes(3, "collectives", "1", "ranks=shared");
}
// Two hosts, each with devices 0 and 1.
TEST(CommunicatorsOfProcesses, MayBeOnTwoHosts) { on_processes(4, "collectives", "2", "", 2); }
TEST(CommunicatorsOfProcesses, NameALostLink) {
  // A rank may wait for one that has ended its part. As with NCCL, only an abort or the limit ends
  // this wait.
  on_processes(2, "lost_link", "2,fault=0-1:link:3", "wait=5");
}
TEST(CommunicatorsOfProcesses, NameADeadPeer) { on_processes(2, "dead_peer", "2", ""); }
TEST(CommunicatorsOfProcesses, NameAPeerThatDoesNotCall) {
  on_processes(2, "missing_call", "2", "wait=2");
}
TEST(CommunicatorsOfProcesses, RejectFloat8SumsBelowSm90) {
  on_processes(2, "float8", "2,sm=80", "");
}

}  // namespace
}  // namespace machine::virtual_gpu::nccl
