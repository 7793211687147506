// Registered memory (NCCL User Guide, "User Buffer Registration", "Window Registration").

#include <gtest/gtest.h>

#include "machine/virtual_gpu/nccl/communicator.h"
#include "machine/virtual_gpu/nccl/testing.h"

namespace machine::virtual_gpu::nccl {
namespace {

constexpr std::size_t bytes = 10'000;

TEST(Registration, IsOfLiveMemoryOfTheDevice) {
  on_ranks(2, [](Member& me) {
    const Values<float> plain(bytes / sizeof(float));
    void* handle = nullptr;
    EXPECT_NCCL(ncclCommRegister(me.comm, plain.data(), bytes, &handle));
    EXPECT_NCCL(ncclCommDeregister(me.comm, handle));
    EXPECT_EQ(ncclCommDeregister(me.comm, handle), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(me.comm, plain.data(), bytes + 4, &handle), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRegister(me.comm, &handle, 8, &handle), ncclInvalidArgument);
    EXPECT_EQ(cudaSetDevice(1 - me.rank), cudaSuccess);
    void* far = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&far, bytes));
    EXPECT_EQ(ncclCommRegister(me.comm, far, bytes, &handle), ncclInvalidArgument);
    EXPECT_NCCL(ncclMemFree(far));
    EXPECT_EQ(cudaSetDevice(me.rank), cudaSuccess);
    cudaGetLastError();
  });
}

TEST(Registration, IsReleasedBeforeTheMemory) {
  on_ranks(1, [](Member& me) {
    void *data = nullptr, *handle = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&data, bytes));
    EXPECT_NCCL(ncclCommRegister(me.comm, data, bytes, &handle));
    EXPECT_EQ(registrations(), 1u);
    EXPECT_EQ(ncclMemFree(data), ncclInvalidUsage);
    EXPECT_NCCL(ncclCommDeregister(me.comm, handle));
    EXPECT_EQ(registrations(), 0u);
    EXPECT_NCCL(ncclMemFree(data));
    EXPECT_EQ(ncclMemFree(data), ncclInvalidArgument);
  });
}

#if NCCL_VERSION_CODE >= 22700
TEST(Registration, AWindowIsAlignedMemoryOfNccl) {
  on_ranks(2, [](Member& me) {
    void *data = nullptr, *plain = nullptr;
    ncclWindow_t window = nullptr;
    EXPECT_NCCL(ncclMemAlloc(&data, bytes));
    EXPECT_EQ(cudaMalloc(&plain, std::size_t{2} << 20), cudaSuccess);
    const auto registers = [&](void* from, std::size_t size) {
      return ncclCommWindowRegister(me.comm, from, size, &window, NCCL_WIN_COLL_SYMMETRIC);
    };
    EXPECT_EQ(registers(static_cast<std::byte*>(data) + 16, 64), ncclInvalidArgument);
    EXPECT_EQ(registers(plain, bytes), ncclInvalidArgument);
    EXPECT_EQ(registers(data, bytes + 1), ncclInvalidArgument);
    EXPECT_NCCL(registers(data, bytes));
    EXPECT_EQ(ncclCommDeregister(me.comm, window), ncclInvalidArgument);
    EXPECT_EQ(ncclMemFree(data), ncclInvalidUsage);
    EXPECT_NCCL(ncclCommWindowDeregister(me.comm, window));
    EXPECT_NCCL(ncclMemFree(data));
    EXPECT_EQ(cudaFree(plain), cudaSuccess);
    cudaGetLastError();
  });
}
#endif

}  // namespace
}  // namespace machine::virtual_gpu::nccl
