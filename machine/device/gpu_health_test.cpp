// The facts that NVML reports, from a library of this test that has some of its functions.

#include "machine/device/gpu_health.h"

#include <gtest/gtest.h>

#include <cstring>

#include "machine/base/nvml.h"
#include "machine/device/device.h"

namespace machine {
namespace {

nvmlReturn_t well() { return NVML_SUCCESS; }
nvmlReturn_t no_driver() { return NVML_ERROR_DRIVER_NOT_LOADED; }
nvmlReturn_t driver(char* version, unsigned) {
  std::strcpy(version, "570.86");
  return NVML_SUCCESS;
}
nvmlReturn_t found(const char* address, nvmlDevice_t* device) {
  *device = nullptr;
  return std::strcmp(address, "00000000:3B:00.0") == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t lost(const char*, nvmlDevice_t*) { return NVML_ERROR_GPU_IS_LOST; }
nvmlReturn_t errors(nvmlDevice_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t counter,
                    unsigned long long* count) {
  *count = counter == NVML_VOLATILE_ECC ? 2 : 7;
  return NVML_SUCCESS;
}
// 3 and 3 pages.
nvmlReturn_t pages(nvmlDevice_t, nvmlPageRetirementCause_t, unsigned* count, unsigned long long*) {
  *count = 3;
  return NVML_ERROR_INSUFFICIENT_SIZE;
}
nvmlReturn_t no_clock(nvmlDevice_t, nvmlClockType_t, unsigned*) { return NVML_ERROR_NOT_SUPPORTED; }
// Six links, of which one is down; two errors of each kind on each.
nvmlReturn_t link_state(nvmlDevice_t, unsigned link, nvmlEnableState_t* state) {
  if (link >= 6) return NVML_ERROR_NOT_SUPPORTED;
  *state = link == 4 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}
nvmlReturn_t link_errors(nvmlDevice_t, unsigned, nvmlNvLinkErrorCounter_t,
                         unsigned long long* count) {
  *count = 2;
  return NVML_SUCCESS;
}

using Functions = std::map<std::string, void*>;
template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}
GpuReading read(const Functions& functions, const std::string& pci_address = "00000000:3B:00.0") {
  return read_gpu(pci_address, [&](const char* name) -> void* {
    const auto found = functions.find(name);
    return found == functions.end() ? nullptr : found->second;
  });
}
Functions some() {
  return {{"nvmlInit_v2", address(well)},
          {"nvmlSystemGetDriverVersion", address(driver)},
          {"nvmlDeviceGetHandleByPciBusId_v2", address(found)},
          {"nvmlDeviceGetTotalEccErrors", address(errors)},
          {"nvmlDeviceGetRetiredPages", address(pages)},
          {"nvmlDeviceGetClockInfo", address(no_clock)},
          {"nvmlDeviceGetNvLinkState", address(link_state)},
          {"nvmlDeviceGetNvLinkErrorCounter", address(link_errors)}};
}

TEST(GpuHealth, HasTheFactsThatTheLibraryReports) {
  const GpuReading reading = read(some());
  EXPECT_EQ(reading.texts, (std::map<std::string, std::string>{{"driver", "570.86"}}));
  EXPECT_EQ(reading.numbers, (std::map<std::string, std::int64_t>{{"ecc_uncorrected_volatile", 2},
                                                                  {"ecc_uncorrected_aggregate", 7},
                                                                  {"pages_retired", 6},
                                                                  {"nvlinks", 6},
                                                                  {"nvlinks_active", 5},
                                                                  {"nvlink_errors", 40}}));
  EXPECT_EQ(trouble_of(reading), "2 uncorrected memory (ECC) errors since the driver was loaded");
}

TEST(GpuHealth, IsEmptyWithoutLibraryDriverOrGpu) {
  for (const Functions& functions : {Functions{}, Functions{{"nvmlInit_v2", address(no_driver)}}}) {
    const GpuReading reading = read(functions);
    EXPECT_TRUE(reading.texts.empty() && reading.numbers.empty());
    EXPECT_EQ(trouble_of(reading), "");
  }
  EXPECT_TRUE(read(some(), "").texts.empty());
  EXPECT_TRUE(read(some(), "00000000:3C:00.0").numbers.empty());
}

TEST(GpuHealth, KnowsALostGpu) {
  Functions functions = some();
  functions["nvmlDeviceGetHandleByPciBusId_v2"] = address(lost);
  const GpuReading reading = read(functions);
  EXPECT_TRUE(reading.numbers.empty());
  EXPECT_EQ(trouble_of(reading), "the GPU is lost");
}

// Every function that is called exists there.
TEST(GpuHealth, OfAVirtualGpuIsWhole) {
  if (!cuda::is_virtual() || cuda::count() == 0) GTEST_SKIP() << "no virtual GPU";
  const GpuReading reading = read_gpu(cuda::make_device(0)->pci_address());
  for (const char* fact : {"driver", "uuid", "vbios"})
    EXPECT_TRUE(reading.texts.contains(fact)) << fact;
  for (const char* fact : {"ecc_uncorrected_volatile",
                           "ecc_uncorrected_aggregate",
                           "rows_remapped_uncorrected",
                           "rows_remapped_corrected",
                           "row_remap_pending",
                           "row_remap_failed",
                           "throttle_reasons",
                           "thermal_slowdown_ns",
                           "clock_sm_mhz",
                           "clock_sm_max_mhz",
                           "clock_memory_mhz",
                           "clock_memory_max_mhz",
                           "temperature_C",
                           "power_mW",
                           "power_cap_mW",
                           "pcie_generation",
                           "pcie_generation_max",
                           "pcie_lanes",
                           "pcie_lanes_max",
                           "nvlinks",
                           "nvlinks_active",
                           "nvlink_errors",
                           "persistence_mode",
                           "mig_mode"})
    EXPECT_TRUE(reading.numbers.contains(fact)) << fact;
  EXPECT_EQ(trouble_of(reading), "");
}

}  // namespace
}  // namespace machine
