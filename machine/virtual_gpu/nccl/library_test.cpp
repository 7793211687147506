// The virtual NCCL compared with NCCL's documentation (User Guide: "Collective Communication
// Functions", "Point To Point Communication Functions", "Group Calls", "Communicators").

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/nccl/testing.h"

namespace machine::virtual_gpu::nccl {
namespace {

// Before the first call of the runtime. Up to four ranks have a device each.
[[maybe_unused]] const int four_devices = ::setenv("SHARDMARK_VIRTUAL_GPUS", "4", 0);

constexpr std::size_t count = 1000;

template <class T>
constexpr ncclDataType_t type_of = ncclNumTypes;
template <>
constexpr ncclDataType_t type_of<float> = ncclFloat32;
template <>
constexpr ncclDataType_t type_of<int> = ncclInt32;
template <>
constexpr ncclDataType_t type_of<std::uint8_t> = ncclUint8;
template <>
constexpr ncclDataType_t type_of<__nv_bfloat16> = ncclBfloat16;
template <>
constexpr ncclDataType_t type_of<__half> = ncclFloat16;
template <>
constexpr ncclDataType_t type_of<__nv_fp8_e4m3> = ncclFloat8e4m3;

// Rounded once, to the type.
template <class T>
double as(double value) {
  return static_cast<double>(static_cast<float>(static_cast<T>(static_cast<float>(value))));
}
// Element i of rank r is 1 + r + i % 8 (Values).
double value(int rank, std::size_t i) { return 1 + rank + static_cast<double>(i % 8); }
double sum(int ranks, std::size_t i) {
  double result = 0;
  for (int rank = 0; rank < ranks; ++rank) result += value(rank, i);
  return result;
}

template <class T>
class Collectives : public testing::Test {};
using Types = testing::Types<float, int, std::uint8_t, __nv_bfloat16, __half, __nv_fp8_e4m3>;
TYPED_TEST_SUITE(Collectives, Types);

TYPED_TEST(Collectives, EqualTheClosedForm) {
  using T = TypeParam;
  constexpr ncclDataType_t type = type_of<T>;
  for (const int ranks : {1, 2, 4})
    on_ranks(ranks, [&](Member& me) {
      const auto n = static_cast<std::size_t>(me.size), r = static_cast<std::size_t>(me.rank);
      const Values<T> in(count, 1 + me.rank, 1), wide(count * n, 1 + me.rank, 1);
      const Values<T> out(count, -1), whole(count * n, -1);
      for (int round = 0; round < 2; ++round) {
        EXPECT_NCCL(ncclAllReduce(in.data(), out.data(), count, type, ncclSum, me.comm, me.stream));
        EXPECT_NCCL(ncclAllGather(in.data(), whole.data(), count, type, me.comm, me.stream));
        const auto reduced = out.after(me.stream), gathered = whole.after(me.stream);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(reduced[i], as<T>(sum(me.size, i)));
        for (std::size_t i = 0; i < count * n; ++i)
          ASSERT_EQ(gathered[i], value(static_cast<int>(i / count), i % count));
      }
      const int root = me.size - 1;
      EXPECT_NCCL(
          ncclReduceScatter(wide.data(), out.data(), count, type, ncclSum, me.comm, me.stream));
      auto got = out.after(me.stream);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], as<T>(sum(me.size, r * count + i)));
      EXPECT_NCCL(ncclBroadcast(in.data(), out.data(), count, type, root, me.comm, me.stream));
      got = out.after(me.stream);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], value(root, i));
      EXPECT_NCCL(
          ncclReduce(in.data(), out.data(), count, type, ncclMax, root, me.comm, me.stream));
      got = out.after(me.stream);
      for (std::size_t i = 0; i < count && me.rank == root; ++i)
        ASSERT_EQ(got[i], value(me.size - 1, i));
      EXPECT_NCCL(ncclAlltoAll(wide.data(), whole.data(), count, type, me.comm, me.stream));
      got = whole.after(me.stream);
      for (std::size_t i = 0; i < count * n; ++i)
        ASSERT_EQ(got[i], value(static_cast<int>(i / count), r * count + i % count));
      EXPECT_NCCL(ncclScatter(wide.data(), out.data(), count, type, root, me.comm, me.stream));
      got = out.after(me.stream);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], value(root, r * count + i));
      EXPECT_NCCL(ncclGather(in.data(), whole.data(), count, type, root, me.comm, me.stream));
      got = whole.after(me.stream);
      for (std::size_t i = 0; i < count * n && me.rank == root; ++i)
        ASSERT_EQ(got[i], value(static_cast<int>(i / count), i % count));
    });
}

TEST(Collective, ReducesInPlaceByEveryOperation) {
  on_ranks(4, [](Member& me) {
    const double expected[] = {sum(4, 2), 3 * 4 * 5 * 6, 6, 3, 4.5};  // of element 2
    for (int op = 0; op < ncclNumOps; ++op) {
      const Values<float> data(count, 1 + me.rank, 1);
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclFloat32,
                                static_cast<ncclRedOp_t>(op), me.comm, me.stream));
      EXPECT_EQ(data.after(me.stream)[2], expected[op]);
    }
    const Values<float> all(4 * count, 1 + me.rank, 1);
    float* mine = all.data() + static_cast<std::size_t>(me.rank) * count;
    EXPECT_NCCL(
        ncclReduceScatter(all.data(), mine, count, ncclFloat32, ncclSum, me.comm, me.stream));
    EXPECT_NCCL(ncclAllGather(mine, all.data(), count, ncclFloat32, me.comm, me.stream));
    const auto got = all.after(me.stream);
    for (std::size_t i = 0; i < 4 * count; ++i) ASSERT_EQ(got[i], sum(4, i));
  });
}

// A rank that waits makes its peers' streams run up to the operation, and no further.
TEST(Collective, RunsWhenAPeerWaits) {
  on_ranks(2, [](Member& me) {
    const Values<float> in(count, 1 + me.rank, 1), out(count, -1), later(count, -1);
    EXPECT_NCCL(
        ncclAllReduce(in.data(), out.data(), count, ncclFloat32, ncclSum, me.comm, me.stream));
    cudaEvent_t event;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, me.stream), cudaSuccess);
    EXPECT_NCCL(
        ncclAllReduce(in.data(), later.data(), count, ncclFloat32, ncclSum, me.comm, me.stream));
    const bool lazy = configuration().order == Order::lazy;
    if (lazy) {
      EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    }
    me.meet();
    if (me.rank == 0) {
      EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    }
    me.meet();
    if (lazy) {
      EXPECT_EQ(cudaStreamQuery(me.stream), cudaErrorNotReady);
    }
    me.meet();
    EXPECT_EQ(later.after(me.stream)[3], sum(2, 3));
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  });
}

TEST(PointToPoint, MessagesArriveInOrder) {
  constexpr int rounds = 20;
  on_ranks(3, [](Member& me) {
    const int to = (me.rank + 1) % 3, from = (me.rank + 2) % 3;
    std::vector<std::unique_ptr<Values<float>>> sent, got;
    for (int round = 0; round < rounds; ++round) {
      const auto size = static_cast<std::size_t>(1 + 7 * round);
      for (int k = 0; k < 2; ++k) {
        sent.push_back(std::make_unique<Values<float>>(size, 100 * round + 10 * me.rank + k, 1));
        got.push_back(std::make_unique<Values<float>>(size, -1));
      }
      EXPECT_NCCL(ncclGroupStart());
      for (std::size_t k = sent.size() - 2; k < sent.size(); ++k) {
        EXPECT_NCCL(ncclSend(sent[k]->data(), size, ncclFloat32, to, me.comm, me.stream));
        EXPECT_NCCL(ncclRecv(got[k]->data(), size, ncclFloat32, from, me.comm, me.stream));
      }
      EXPECT_NCCL(ncclGroupEnd());
    }
    for (int round = 0; round < rounds; ++round)
      for (int k = 0; k < 2; ++k) {
        const auto values = got[static_cast<std::size_t>(2 * round + k)]->after(me.stream);
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], 100 * round + 10 * from + k + static_cast<double>(i % 8));
      }
  });
}

// The groups of the ranks need not have the same calls.
TEST(PointToPoint, AGroupMeetsSingleCalls) {
  on_ranks(3, [](Member& me) {
    const Values<float> a(count, 10 + me.rank), b(count, 20 + me.rank), c(count, -1), d(count, -1);
    if (me.rank == 0) {
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclSend(a.data(), count, ncclFloat32, 1, me.comm, me.stream));
      EXPECT_NCCL(ncclSend(b.data(), count, ncclFloat32, 1, me.comm, me.stream));
      EXPECT_NCCL(ncclRecv(c.data(), count, ncclFloat32, 2, me.comm, me.stream));
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_EQ(c.after(me.stream)[0], 12);
    } else if (me.rank == 1) {
      EXPECT_NCCL(ncclRecv(c.data(), count, ncclFloat32, 0, me.comm, me.stream));
      EXPECT_NCCL(ncclRecv(d.data(), count, ncclFloat32, 0, me.comm, me.stream));
      EXPECT_NCCL(ncclSend(c.data(), count, ncclFloat32, 2, me.comm, me.stream));
      EXPECT_EQ(d.after(me.stream)[0], 20);
    } else {
      EXPECT_NCCL(ncclRecv(c.data(), count, ncclFloat32, 1, me.comm, me.stream));
      EXPECT_NCCL(ncclSend(a.data(), count, ncclFloat32, 0, me.comm, me.stream));
      EXPECT_EQ(c.after(me.stream)[0], 10);
    }
  });
}

// A mismatch between the calls of ranks: its name, each rank's call, and a part of the error's
// text.
struct Mistake {
  const char* name;
  const char* text;
  void (*call)(Member& me, float* a, float* b);
};
class Disagreement : public testing::TestWithParam<Mistake> {};

TEST_P(Disagreement, IsFoundAndNamed) {
  std::atomic<int> named = 0;
  on_ranks(
      2,
      [&](Member& me) {
        const Values<float> a(2 * count, 1), b(2 * count, 2);
        GetParam().call(me, a.data(), b.data());
        EXPECT_NE(cudaStreamSynchronize(me.stream), cudaSuccess);
        ncclResult_t state = ncclSuccess;
        EXPECT_NCCL(ncclCommGetAsyncError(me.comm, &state));
        EXPECT_NE(state, ncclSuccess);
        named += std::string(ncclGetLastError(me.comm)).find(GetParam().text) != std::string::npos;
      },
      false);
  EXPECT_GE(named, 1);
}

const Mistake mistakes[] = {
    {"count", "ncclAllReduce of 1001 float32, sum",
     [](Member& me, float* a, float* b) {
       ncclAllReduce(a, b, count + static_cast<std::size_t>(me.rank), ncclFloat32, ncclSum, me.comm,
                     me.stream);
     }},
    {"type", "ncclAllReduce of 1000 int32, sum",
     [](Member& me, float* a, float* b) {
       ncclAllReduce(a, b, count, me.rank == 0 ? ncclFloat32 : ncclInt32, ncclSum, me.comm,
                     me.stream);
     }},
    {"operation", "ncclAllReduce of 1000 float32, max",
     [](Member& me, float* a, float* b) {
       ncclAllReduce(a, b, count, ncclFloat32, me.rank == 0 ? ncclSum : ncclMax, me.comm,
                     me.stream);
     }},
    {"root", "root 1",
     [](Member& me, float* a, float* b) {
       ncclBroadcast(a, b, count, ncclFloat32, me.rank, me.comm, me.stream);
     }},
    {"message", "ncclSend of 1000 float32 to rank 1",
     [](Member& me, float* a, float* b) {
       if (me.rank == 0)
         ncclSend(a, count, ncclFloat32, 1, me.comm, me.stream);
       else
         ncclRecv(b, count + 1, ncclFloat32, 0, me.comm, me.stream);
     }},
    {"order", "ncclAllGather of 10 float32",
     [](Member& me, float* a, float* b) {
       for (const int rank : {0, 1})
         if (rank == me.rank)
           ncclAllReduce(a, b, 10, ncclFloat32, ncclSum, me.comm, me.stream);
         else
           ncclAllGather(a, b, 10, ncclFloat32, me.comm, me.stream);
     }},
    {"sends_outside_of_a_group", "waits for it in ncclSend",
     [](Member& me, float* a, float* b) {
       ncclSend(a, count, ncclFloat32, 1 - me.rank, me.comm, me.stream);
       ncclRecv(b, count, ncclFloat32, 1 - me.rank, me.comm, me.stream);
     }},
    {"send_in_place_of_receive", "waits for it in ncclSend",
     [](Member& me, float* a, float*) {
       ncclSend(a, count, ncclFloat32, 1 - me.rank, me.comm, me.stream);
     }},
    {"collective_before_a_message", "which waits for it in",
     [](Member& me, float* a, float* b) {
       if (me.rank == 0) ncclSend(a, count, ncclFloat32, 1, me.comm, me.stream);
       ncclAllReduce(a, b, count, ncclFloat32, ncclSum, me.comm, me.stream);
       if (me.rank == 1) ncclRecv(a, count, ncclFloat32, 0, me.comm, me.stream);
     }},
};
INSTANTIATE_TEST_SUITE_P(, Disagreement, testing::ValuesIn(mistakes),
                         [](const auto& info) { return info.param.name; });

TEST(Arguments, AreChecked) {
  on_ranks(2, [](Member& me) {
    const Values<float> a(count, 1), b(count, 2);
    const auto reduce = [&](const void* in, void* out, std::size_t n = count) {
      return ncclAllReduce(in, out, n, ncclFloat32, ncclSum, me.comm, me.stream);
    };
    std::vector<float> pageable(count);
    EXPECT_EQ(reduce(pageable.data(), b.data()), ncclInvalidArgument);
    EXPECT_EQ(reduce(a.data(), pageable.data()), ncclInvalidArgument);
    EXPECT_EQ(reduce(a.data(), b.data(), count + 1), ncclInvalidArgument);
    EXPECT_EQ(reduce(a.data() + 1, b.data()), ncclInvalidArgument);
    const float* freed = Values<float>(count).data();
    EXPECT_EQ(reduce(freed, b.data()), ncclInvalidArgument);
    EXPECT_EQ(cudaSetDevice(1 - me.rank), cudaSuccess);
    const Values<float> other(count);
    EXPECT_EQ(cudaSetDevice(me.rank), cudaSuccess);
    EXPECT_EQ(reduce(other.data(), b.data()), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(a.data(), count, ncclFloat32, 2, me.comm, me.stream), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(a.data(), b.data(), count, ncclFloat32, -1, me.comm, me.stream),
              ncclInvalidArgument);
    EXPECT_EQ(ncclAlltoAll(a.data(), a.data(), 10, ncclFloat32, me.comm, me.stream),
              ncclInvalidArgument);
    // An error inside of a group is the group's, which then queues nothing.
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(reduce(a.data(), b.data()));
    EXPECT_EQ(reduce(a.data(), nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    // Buffers of a group that overlap.
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(a.data(), 10, ncclFloat32, 1 - me.rank, me.comm, me.stream));
    EXPECT_NCCL(ncclRecv(a.data() + 9, 10, ncclFloat32, 1 - me.rank, me.comm, me.stream));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(cudaStreamQuery(me.stream), cudaSuccess);  // nothing was queued
    cudaGetLastError();
  });
}

// The calls of a group are queued at its end.
TEST(Group, QueuesAtItsEnd) {
  on_ranks(2, [](Member& me) {
    const Values<float> a(count, 1 + me.rank), b(count, -1), c(count, -1);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(a.data(), count, ncclFloat32, 1 - me.rank, me.comm, me.stream));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(ncclRecv(b.data(), count, ncclFloat32, 1 - me.rank, me.comm, me.stream));
    EXPECT_NCCL(ncclAllReduce(a.data(), c.data(), count, ncclFloat32, ncclSum, me.comm, me.stream));
    EXPECT_EQ(cudaStreamQuery(me.stream), cudaSuccess);
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(b.after(me.stream)[0], 2 - me.rank);
    EXPECT_EQ(c.after(me.stream)[0], 3);
  });
}

}  // namespace
}  // namespace machine::virtual_gpu::nccl
