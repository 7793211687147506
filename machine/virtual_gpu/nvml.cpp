// The functions of NVML that machine/device/gpu_health.cpp calls: healthy GPUs, and the faults that
// the process has met (faults.h). The program finds this library as libnvidia-ml.so.1.

#include "machine/base/nvml.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "machine/virtual_gpu/configuration.h"

using namespace machine::virtual_gpu;

namespace {

using enum Fault::Kind;

// A handle is the number of the device on the host, from 1.
int number_of(nvmlDevice_t device) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(device)) - 1;
}
int met(Fault::Kind kind, nvmlDevice_t device) { return strikes(kind, number_of(device)); }

// Returns a value of a device through a parameter.
template <class T, class U>
nvmlReturn_t give(nvmlDevice_t device, T* result, U value) {
  if (met(lost, device) > 0) return NVML_ERROR_GPU_IS_LOST;
  *result = static_cast<T>(value);
  return NVML_SUCCESS;
}

nvmlReturn_t give_text(const char* value, char* text, unsigned length) {
  if (std::strlen(value) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::strcpy(text, value);
  return NVML_SUCCESS;
}

}  // namespace

extern "C" {

// A function that returns a number of a device.
#define NUMBER(function, value)                                  \
  nvmlReturn_t function(nvmlDevice_t device, unsigned* result) { \
    return give(device, result, value);                          \
  }

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return give_text("virtual", version, length);
}

// The address that cudaGetDeviceProperties returns.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(address, "%x:%x:", &domain, &bus) != 2 || bus == 0 || bus > most_devices)
    return NVML_ERROR_NOT_FOUND;
  *device = reinterpret_cast<nvmlDevice_t>(static_cast<std::intptr_t>(bus));
  return met(lost, *device) > 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  char text[48];
  std::snprintf(text, sizeof text, "GPU-virtual-%08x-%d", host_number(), number_of(device));
  return give_text(text, uuid, length);
}
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t, char* version, unsigned length) {
  return give_text("virtual", version, length);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t,
                                         nvmlEccCounterType_t, unsigned long long* errors) {
  return give(device, errors, met(ecc, device));
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned* correctable,
                                       unsigned* uncorrectable, unsigned* pending,
                                       unsigned* failed) {
  *correctable = *failed = 0;
  *pending = met(remap, device) > 0;  // the row is remapped at the next reset
  return give(device, uncorrectable, met(remap, device));
}
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t, nvmlPageRetirementCause_t, unsigned*,
                                       unsigned long long*) {
  return NVML_ERROR_NOT_SUPPORTED;  // as GPUs that remap rows
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                       unsigned long long* reasons) {
  const int idle = 0x1, heat = met(hot, device) > 0 ? 0x40 : 0;
  return give(device, reasons, idle | heat | (met(brake, device) > 0 ? 0x80 : 0));
}
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t,
                                          nvmlViolationTime_t* time) {
  return give(device, &time->violationTime, met(hot, device) * 2'000'000'000LL);
}
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t clock, unsigned* mhz) {
  return give(device, mhz, clock == NVML_CLOCK_SM && met(hot, device) == 0 ? 1980 : 1200);
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t clock, unsigned* mhz) {
  return give(device, mhz, clock == NVML_CLOCK_SM ? 1980 : 1200);
}
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t,
                                      unsigned* celsius) {
  return give(device, celsius, met(hot, device) > 0 ? 91 : 40);
}
NUMBER(nvmlDeviceGetPowerUsage, 100'000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 700'000)

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, met(pcie, device) > 0 ? 4 : 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link,
                                      nvmlEnableState_t* state) {
  if (link >= 4 || !configuration().peers) return NVML_ERROR_NOT_SUPPORTED;
  return give(device, state, link > 0 || met(nvlink, device) == 0);
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned /*link*/,
                                             nvmlNvLinkErrorCounter_t, unsigned long long* errors) {
  return give(device, errors, 0);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode, NVML_FEATURE_ENABLED);
}
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return give(device, current, 0);
}
}
