#include "machine/device/gpu_health.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "machine/base/nvml.h"

namespace machine {
namespace {

constexpr unsigned most_nvlinks = 18;

void* find_in_library(const char* name) {
  static void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW);
  return library ? ::dlsym(library, name) : nullptr;
}

class Reader {
 public:
  explicit Reader(const FindFunction& find) : find_(find) {}

  GpuReading read(const std::string& pci_address);

 private:
  // Calls a function of the library. False if the library lacks it, or if it fails.
  template <class... Parameters, class... Arguments>
  bool call(const char* name, nvmlReturn_t (*)(Parameters...), Arguments... arguments) {
    void* const address = find_(name);
    result_ = address ? reinterpret_cast<nvmlReturn_t (*)(Parameters...)>(address)(arguments...)
                      : NVML_ERROR_NOT_SUPPORTED;
    return result_ == NVML_SUCCESS;
  }
// The type of the function only: nothing is linked.
#define NVML(function, ...) \
  call(#function, static_cast<decltype(&(function))>(nullptr), __VA_ARGS__)

  // Notes a number that a function returns through its last parameter.
  template <class Number, class... Parameters, class... Arguments>
  void note(const char* fact, const char* name, nvmlReturn_t (*type)(Parameters...),
            Arguments... arguments) {
    Number value{};
    if (call(name, type, arguments..., &value))
      reading_.numbers[fact] = static_cast<std::int64_t>(value);
  }
#define NOTE(Number, fact, function, ...) \
  note<Number>(fact, #function, static_cast<decltype(&(function))>(nullptr), __VA_ARGS__)

  void memory();
  void clocks_and_power();
  void links();

  const FindFunction& find_;
  nvmlDevice_t gpu_ = nullptr;
  nvmlReturn_t result_ = NVML_SUCCESS;
  GpuReading reading_;
};

GpuReading Reader::read(const std::string& pci_address) {
  if (!call("nvmlInit_v2", static_cast<decltype(&nvmlInit_v2)>(nullptr))) return {};
  char text[128] = "";
  if (NVML(nvmlSystemGetDriverVersion, text, unsigned{sizeof text}))
    reading_.texts["driver"] = text;
  if (NVML(nvmlDeviceGetHandleByPciBusId_v2, pci_address.c_str(), &gpu_)) {
    if (NVML(nvmlDeviceGetUUID, gpu_, text, unsigned{sizeof text})) reading_.texts["uuid"] = text;
    memory();
    clocks_and_power();
    links();
    if (NVML(nvmlDeviceGetVbiosVersion, gpu_, text, unsigned{sizeof text}))
      reading_.texts["vbios"] = text;
  }
  // The result of the last call.
  if (result_ == NVML_ERROR_GPU_IS_LOST) reading_.texts["unreachable"] = "the GPU is lost";
  return std::move(reading_);
}

void Reader::memory() {
  NOTE(unsigned long long, "ecc_uncorrected_volatile", nvmlDeviceGetTotalEccErrors, gpu_,
       NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC);
  NOTE(unsigned long long, "ecc_uncorrected_aggregate", nvmlDeviceGetTotalEccErrors, gpu_,
       NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (NVML(nvmlDeviceGetRemappedRows, gpu_, &corrected, &uncorrected, &pending, &failed)) {
    reading_.numbers["rows_remapped_corrected"] = corrected;
    reading_.numbers["rows_remapped_uncorrected"] = uncorrected;
    reading_.numbers["row_remap_pending"] = pending;
    reading_.numbers["row_remap_failed"] = failed;
  }
  // Older GPUs retire pages instead. Without room for the addresses, only the number is returned.
  std::int64_t retired = -1;
  for (const auto cause : {NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
                           NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR}) {
    unsigned pages = 0;
    unsigned long long* const no_room = nullptr;
    if (NVML(nvmlDeviceGetRetiredPages, gpu_, cause, &pages, no_room) ||
        result_ == NVML_ERROR_INSUFFICIENT_SIZE)
      retired = std::max<std::int64_t>(retired, 0) + pages;
  }
  if (retired >= 0) reading_.numbers["pages_retired"] = retired;
}

void Reader::clocks_and_power() {
  NOTE(unsigned long long, "throttle_reasons", nvmlDeviceGetCurrentClocksThrottleReasons, gpu_);
  nvmlViolationTime_t slowed{};
  if (NVML(nvmlDeviceGetViolationStatus, gpu_, NVML_PERF_POLICY_THERMAL, &slowed))
    reading_.numbers["thermal_slowdown_ns"] = static_cast<std::int64_t>(slowed.violationTime);
  NOTE(unsigned, "clock_sm_mhz", nvmlDeviceGetClockInfo, gpu_, NVML_CLOCK_SM);
  NOTE(unsigned, "clock_sm_max_mhz", nvmlDeviceGetMaxClockInfo, gpu_, NVML_CLOCK_SM);
  NOTE(unsigned, "clock_memory_mhz", nvmlDeviceGetClockInfo, gpu_, NVML_CLOCK_MEM);
  NOTE(unsigned, "clock_memory_max_mhz", nvmlDeviceGetMaxClockInfo, gpu_, NVML_CLOCK_MEM);
  NOTE(unsigned, "temperature_C", nvmlDeviceGetTemperature, gpu_, NVML_TEMPERATURE_GPU);
  NOTE(unsigned, "power_mW", nvmlDeviceGetPowerUsage, gpu_);
  NOTE(unsigned, "power_cap_mW", nvmlDeviceGetEnforcedPowerLimit, gpu_);
  NOTE(nvmlEnableState_t, "persistence_mode", nvmlDeviceGetPersistenceMode, gpu_);
  unsigned mode = 0, pending = 0;
  if (NVML(nvmlDeviceGetMigMode, gpu_, &mode, &pending)) reading_.numbers["mig_mode"] = mode;
}

void Reader::links() {
  NOTE(unsigned, "pcie_generation", nvmlDeviceGetCurrPcieLinkGeneration, gpu_);
  NOTE(unsigned, "pcie_generation_max", nvmlDeviceGetMaxPcieLinkGeneration, gpu_);
  NOTE(unsigned, "pcie_lanes", nvmlDeviceGetCurrPcieLinkWidth, gpu_);
  NOTE(unsigned, "pcie_lanes_max", nvmlDeviceGetMaxPcieLinkWidth, gpu_);
  std::int64_t links = 0, active = 0, errors = 0;
  bool counted = false;
  for (unsigned link = 0; link < most_nvlinks; ++link) {
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    if (!NVML(nvmlDeviceGetNvLinkState, gpu_, link, &state)) continue;
    ++links;
    if (state != NVML_FEATURE_ENABLED) continue;
    ++active;
    for (const auto counter : {NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY,
                               NVML_NVLINK_ERROR_DL_CRC_FLIT, NVML_NVLINK_ERROR_DL_CRC_DATA}) {
      unsigned long long count = 0;
      if (!NVML(nvmlDeviceGetNvLinkErrorCounter, gpu_, link, counter, &count)) continue;
      errors += static_cast<std::int64_t>(count);
      counted = true;
    }
  }
  if (links == 0) return;
  reading_.numbers["nvlinks"] = links;
  reading_.numbers["nvlinks_active"] = active;
  if (counted) reading_.numbers["nvlink_errors"] = errors;
}

}  // namespace

GpuReading read_gpu(const std::string& pci_address) {
  return read_gpu(pci_address, find_in_library);
}

GpuReading read_gpu(const std::string& pci_address, const FindFunction& find) {
  if (pci_address.empty()) return {};
  return Reader(find).read(pci_address);
}

std::string trouble_of(const GpuReading& reading) {
  if (const auto lost = reading.texts.find("unreachable"); lost != reading.texts.end())
    return lost->second;
  const auto errors = reading.numbers.find("ecc_uncorrected_volatile");
  if (errors == reading.numbers.end() || errors->second == 0) return {};
  return fmt::format("{} uncorrected memory (ECC) error{} since the driver was loaded",
                     errors->second, errors->second == 1 ? "" : "s");
}

}  // namespace machine
