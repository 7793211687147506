#pragma once
// A GPU's health as the driver's management library (NVML) reports it. The library is opened by the
// first call. A fact that the library, the driver or the GPU does not report is absent.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace machine {

// Bits of `throttle_reasons`: the clock is lowered by heat (software or hardware), or by the power
// supply. Other bits, such as an idle GPU, are normal.
inline constexpr std::int64_t slowed_by_heat = 0x20 | 0x40, slowed_by_power_brake = 0x80;

struct GpuReading {
  // "driver", "vbios", "uuid"; "unreachable": why the driver does not reach the GPU (it is lost)
  std::map<std::string, std::string> texts;
  // Counters, states and rates: "ecc_uncorrected_volatile", "ecc_uncorrected_aggregate",
  // "rows_remapped_uncorrected", "rows_remapped_corrected", "row_remap_pending",
  // "row_remap_failed", "pages_retired", "throttle_reasons", "thermal_slowdown_ns",
  // "clock_sm_mhz", "clock_sm_max_mhz", "clock_memory_mhz", "clock_memory_max_mhz",
  // "temperature_C", "power_mW", "power_cap_mW", "pcie_generation", "pcie_generation_max",
  // "pcie_lanes", "pcie_lanes_max", "nvlinks", "nvlinks_active", "nvlink_errors",
  // "persistence_mode", "mig_mode"
  std::map<std::string, std::int64_t> numbers;
};

// Returns the address of a function of the library, or null.
using FindFunction = std::function<void*(const char* name)>;

// Reads the GPU at this PCI address ("00000000:3B:00.0"). An empty address has no facts.
GpuReading read_gpu(const std::string& pci_address);
GpuReading read_gpu(const std::string& pci_address, const FindFunction& find);

// Returns why the GPU itself may be the cause of a failed call ("the GPU is lost", uncorrected
// memory errors), or an empty text.
std::string trouble_of(const GpuReading& reading);

}  // namespace machine
