#include "machine/virtual_gpu/errors.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "machine/virtual_gpu/configuration.h"

namespace machine::virtual_gpu {
namespace {

struct Name {
  cudaError_t status;
  const char *name, *text;
};
#define STATUS(status, text) \
  { status, #status, text }
constexpr Name names[] = {
    STATUS(cudaSuccess, "no error"),
    STATUS(cudaErrorInvalidValue, "invalid argument"),
    STATUS(cudaErrorMemoryAllocation, "out of memory"),
    STATUS(cudaErrorInitializationError, "initialization error"),
    STATUS(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    STATUS(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    STATUS(cudaErrorInvalidDevicePointer, "invalid device pointer"),
    STATUS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    STATUS(cudaErrorDevicesUnavailable, "CUDA-capable device(s) is/are busy or unavailable"),
    STATUS(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    STATUS(cudaErrorInvalidDevice, "invalid device ordinal"),
    STATUS(cudaErrorDeviceUninitialized, "invalid device context"),
    STATUS(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    STATUS(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    STATUS(cudaErrorPeerAccessUnsupported,
           "peer access is not supported between these two devices"),
    STATUS(cudaErrorNvlinkUncorrectable,
           "uncorrectable NVLink error detected during the execution"),
    STATUS(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    STATUS(cudaErrorNotReady, "device not ready"),
    STATUS(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    STATUS(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    STATUS(cudaErrorHostMemoryAlreadyRegistered,
           "part or all of the requested memory range is already mapped"),
    STATUS(cudaErrorHostMemoryNotRegistered,
           "pointer does not correspond to a registered memory region"),
    STATUS(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    STATUS(cudaErrorMisalignedAddress, "misaligned address"),
    STATUS(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    STATUS(cudaErrorLaunchFailure, "unspecified launch failure"),
    STATUS(cudaErrorNotSupported, "operation not supported"),
    STATUS(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    STATUS(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    STATUS(cudaErrorStreamCaptureInvalidated,
           "operation failed due to a previous error during capture"),
    STATUS(cudaErrorStreamCaptureMerge,
           "operation would result in a merge of separate capture sequences"),
    STATUS(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    STATUS(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    STATUS(cudaErrorStreamCaptureIsolation,
           "dependency created on uncaptured work in another stream"),
    STATUS(cudaErrorStreamCaptureImplicit,
           "operation would make the legacy stream depend on a capturing blocking stream"),
    STATUS(cudaErrorCapturedEvent,
           "operation not permitted on an event last recorded in a capturing stream"),
    STATUS(cudaErrorStreamCaptureWrongThread,
           "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef STATUS

const Name& entry(cudaError_t status) {
  static constexpr Name unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const Name& name : names)
    if (name.status == status) return name;
  return unknown;
}

struct Broken {
  std::atomic<cudaError_t> status{cudaSuccess};
  std::string text;
};
std::array<Broken, most_devices> broken;
std::mutex breaking;

// The child of fork() inherits `used` of its parent.
std::atomic<bool> used{false}, forked{false};
std::once_flag watch_fork;

struct Last {
  cudaError_t status = cudaSuccess;
  cudaError_t text_of = cudaSuccess;
  std::string text;
};
thread_local Last last;
thread_local int device_of_thread = 0;

cudaError_t start() {
  std::call_once(watch_fork, [] {
    pthread_atfork(nullptr, nullptr, [] {
      if (used) forked = true;
    });
  });
  if (forked)
    return failed(cudaErrorInitializationError,
                  "this process was forked after its parent had used CUDA");
  used = true;
  return cudaSuccess;
}

}  // namespace

cudaError_t failed(cudaError_t status, std::string text) {
  last.status = last.text_of = status;
  last.text = std::string(entry(status).text) + (text.empty() ? "" : ": ") + std::move(text);
  return status;
}

void break_device(int device, cudaError_t status, const std::string& text) {
  const std::lock_guard lock(breaking);
  Broken& of = broken[device];
  if (of.status != cudaSuccess) return;
  of.text = text;
  of.status = status;
  std::fprintf(stderr, "virtual GPU %d: %s: %s\n", device, entry(status).text, text.c_str());
}

cudaError_t sticky_error(int device) { return broken[device].status; }

cudaError_t failed_device(int device) {
  const Broken& of = broken[static_cast<std::size_t>(device)];
  if (of.status == cudaSuccess) return cudaSuccess;
  return failed(of.status, of.text);
}

void mend_device(int device) {
  broken[static_cast<std::size_t>(device)].status = cudaSuccess;
  last = {};
}

cudaError_t enter() {
  if (const cudaError_t status = start(); status != cudaSuccess) return status;
  return failed_device(device_of_thread);
}

cudaError_t enter_to_release() {
  if (const cudaError_t status = start(); status != cudaSuccess) return status;
  return sticky_error(device_of_thread) == cudaErrorDevicesUnavailable
             ? failed_device(device_of_thread)
             : cudaSuccess;
}

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }

}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

cudaError_t cudaGetLastError() {
  if (start() != cudaSuccess) return cudaErrorInitializationError;
  if (const cudaError_t status = sticky_error(current_device()); status != cudaSuccess)
    return status;
  return std::exchange(last.status, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  if (start() != cudaSuccess) return cudaErrorInitializationError;
  const cudaError_t status = sticky_error(current_device());
  return status != cudaSuccess ? status : last.status;
}

const char* cudaGetErrorName(cudaError_t status) { return entry(status).name; }

// The text of this thread's last error of that kind names the object.
const char* cudaGetErrorString(cudaError_t status) {
  return last.text_of == status && status != cudaSuccess ? last.text.c_str() : entry(status).text;
}
}
