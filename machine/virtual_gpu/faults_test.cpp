// Injected faults compared with what CUDA and NVML do. Each test starts this program again with a
// fault, because a process reads its configuration once and CUDA cannot be used in a forked child.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "machine/base/nvml.h"
#include "machine/virtual_gpu/kernel_language.h"

namespace machine::virtual_gpu {
namespace {

#define EXPECT_CUDA(call) EXPECT_EQ(call, cudaSuccess)

// Runs a disabled test of FaultyGpus in a process with these GPUs.
void in_process(const char* test, const char* gpus) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("SHARDMARK_VIRTUAL_GPUS", gpus, 1);
    const std::string filter = std::string("--gtest_filter=FaultyGpus.DISABLED_") + test;
    ::execl("/proc/self/exe", "virtual_gpu_test", filter.c_str(), "--gtest_also_run_disabled_tests",
            "--gtest_brief=1", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << test << ": status " << status;
}

constexpr int count = 1000;
constexpr std::size_t bytes = count * sizeof(int);

void fill(int* out, int value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = value;
}

// A stream and memory of a device, which becomes the current one.
struct Gpu {
  explicit Gpu(int device) {
    EXPECT_CUDA(cudaSetDevice(device));
    EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    EXPECT_CUDA(cudaMalloc(reinterpret_cast<void**>(&memory), bytes));
  }
  cudaError_t run(int value) const {
    SHARDMARK_LAUNCH(fill, 4, 256, 0, stream, memory, value);
    return cudaStreamSynchronize(stream);
  }
  std::vector<int> values() const {
    std::vector<int> result(count);
    EXPECT_CUDA(cudaMemcpyAsync(result.data(), memory, bytes, cudaMemcpyDefault, stream));
    EXPECT_CUDA(cudaStreamSynchronize(stream));
    return result;
  }
  cudaStream_t stream = nullptr;
  int* memory = nullptr;
};

nvmlReturn_t find_in_nvml(int device, nvmlDevice_t& found) {
  cudaDeviceProp properties;
  EXPECT_CUDA(cudaGetDeviceProperties(&properties, device));
  char address[32];
  std::snprintf(address, sizeof address, "%08X:%02X:%02X.0", properties.pciDomainID,
                properties.pciBusID, properties.pciDeviceID);
  return nvmlDeviceGetHandleByPciBusId_v2(address, &found);
}

unsigned long long ecc_errors(int device) {
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(find_in_nvml(device, found), NVML_SUCCESS);
  unsigned long long errors = 99;
  EXPECT_EQ(nvmlDeviceGetTotalEccErrors(found, NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                        NVML_VOLATILE_ECC, &errors),
            NVML_SUCCESS);
  return errors;
}

TEST(FaultyGpus, DISABLED_Launch) {
  const Gpu other(1), gpu(0);
  EXPECT_CUDA(gpu.run(1));
  EXPECT_EQ(gpu.run(2), cudaErrorLaunchFailure);
  const std::string text = cudaGetErrorString(cudaErrorLaunchFailure);
  EXPECT_NE(text.find("injected into fill"), std::string::npos) << text;
  EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_CUDA(cudaFree(gpu.memory));
  EXPECT_CUDA(cudaSetDevice(1));
  for (int i = 0; i < 3; ++i) EXPECT_CUDA(other.run(i));
}
TEST(Faults, ALaunchFails) { in_process("Launch", "2,fault=0:launch:2"); }

TEST(FaultyGpus, DISABLED_Ecc) {
  const Gpu other(1), gpu(0);
  EXPECT_CUDA(gpu.run(1));
  EXPECT_EQ(ecc_errors(0), 0u);
  EXPECT_EQ(gpu.run(2), cudaErrorECCUncorrectable);
  EXPECT_EQ(gpu.run(3), cudaErrorECCUncorrectable);
  EXPECT_EQ(ecc_errors(0), 1u);
  EXPECT_EQ(ecc_errors(1), 0u);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(other.run(1));
}
TEST(Faults, MemoryHasAnUncorrectableError) { in_process("Ecc", "2,fault=0:ecc:2"); }

TEST(FaultyGpus, DISABLED_Lost) {
  const Gpu other(1), gpu(0);
  EXPECT_EQ(gpu.run(1), cudaErrorDevicesUnavailable);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorDevicesUnavailable);
  EXPECT_EQ(cudaFree(gpu.memory), cudaErrorDevicesUnavailable);
  EXPECT_EQ(cudaStreamDestroy(gpu.stream), cudaErrorDevicesUnavailable);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorDevicesUnavailable);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(other.run(1));
  nvmlDevice_t found = nullptr;
  cudaDeviceProp properties;
  EXPECT_CUDA(cudaGetDeviceProperties(&properties, 0));
  EXPECT_EQ(find_in_nvml(0, found), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(find_in_nvml(1, found), NVML_SUCCESS);
}
TEST(Faults, ADeviceIsLost) { in_process("Lost", "2,fault=0:lost"); }

TEST(FaultyGpus, DISABLED_Bit) {
  const Gpu other(1), gpu(0);
  for (int round = 1; round <= 4; ++round) {
    int wrong_bits = 0;
    EXPECT_CUDA(gpu.run(round));
    for (const int value : gpu.values())
      wrong_bits += std::popcount(static_cast<std::uint32_t>(value ^ round));
    EXPECT_EQ(wrong_bits, round == 3 ? 1 : 0) << round;
    EXPECT_CUDA(cudaSetDevice(1));
    EXPECT_CUDA(other.run(round));
    EXPECT_EQ(other.values(), std::vector<int>(count, round));
    EXPECT_CUDA(cudaSetDevice(0));
  }
}
TEST(Faults, AResultHasOneWrongBit) { in_process("Bit", "2,fault=0:bit:3"); }

TEST(FaultyGpus, DISABLED_Memory) {
  void* memory = nullptr;
  const Gpu other(1);
  EXPECT_CUDA(cudaMalloc(&memory, 8));
  const Gpu gpu(0);
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_CUDA(cudaGetLastError());  // it is not sticky
  EXPECT_CUDA(gpu.run(1));
}
TEST(Faults, AnAllocationFails) { in_process("Memory", "2,fault=0:memory:2"); }

TEST(FaultyGpus, DISABLED_Link) {
  const Gpu a(0), b(1), c(2);
  const auto copy = [](const Gpu& to, const Gpu& from) {
    EXPECT_CUDA(cudaMemcpyAsync(to.memory, from.memory, bytes, cudaMemcpyDefault, to.stream));
    return cudaStreamSynchronize(to.stream);
  };
  EXPECT_CUDA(copy(c, a));
  EXPECT_CUDA(copy(c, b));
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(copy(a, b), cudaErrorNvlinkUncorrectable);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNvlinkUncorrectable);
  EXPECT_CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(0, 0));
  SHARDMARK_LAUNCH(fill, 4, 256, 0, b.stream, a.memory, 1);
  EXPECT_EQ(cudaStreamSynchronize(b.stream), cudaErrorNvlinkUncorrectable);
  EXPECT_CUDA(cudaSetDevice(2));
  EXPECT_CUDA(copy(c, c));
}
TEST(Faults, ALinkIsLost) { in_process("Link", "3,fault=1-0:link"); }

// The driver reports these. Nothing fails.
TEST(FaultyGpus, DISABLED_Reports) {
  const Gpu gpu(0);
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(find_in_nvml(0, found), NVML_SUCCESS);
  const auto facts = [&] {
    unsigned rows = 9, other[3] = {}, lanes = 0;
    unsigned long long reasons = 0;
    nvmlEnableState_t link = NVML_FEATURE_DISABLED;
    EXPECT_EQ(nvmlDeviceGetRemappedRows(found, &other[0], &rows, &other[1], &other[2]),
              NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetCurrentClocksThrottleReasons(found, &reasons), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetCurrPcieLinkWidth(found, &lanes), NVML_SUCCESS);
    EXPECT_EQ(nvmlDeviceGetNvLinkState(found, 0, &link), NVML_SUCCESS);
    return std::vector<unsigned long long>{rows, reasons, lanes,
                                           static_cast<unsigned long long>(link)};
  };
  EXPECT_CUDA(gpu.run(1));
  EXPECT_EQ(facts(), (std::vector<unsigned long long>{0, 0x1, 16, 1}));
  EXPECT_CUDA(gpu.run(2));
  EXPECT_EQ(facts(), (std::vector<unsigned long long>{1, 0x1 | 0x40 | 0x80, 4, 0}));
}
TEST(Faults, TheDriverReportsThem) {
  in_process("Reports",
             "1,fault=0:remap:2,fault=0:hot:2,fault=0:brake:2,fault=0:pcie:2,fault=0:nvlink:2");
}

TEST(FaultyGpus, DISABLED_None) { cudaSetDevice(0); }
TEST(Faults, InvalidOnesAreNamed) {
  for (const char* gpus : {"2,fault=0", "2,fault=0:lunch", "2,fault=0:link", "2,fault=0-1:ecc",
                           "2,fault=99:ecc", "2,fault=0:ecc:", "2,faults=0:ecc"}) {
    EXPECT_EXIT(
        {
          in_process("None", gpus);
          std::_Exit(testing::Test::HasFailure() ? 2 : 0);
        },
        testing::ExitedWithCode(2), "SHARDMARK_VIRTUAL_GPUS is 2,fault.*; expected a number and")
        << gpus;
  }
}

}  // namespace
}  // namespace machine::virtual_gpu
