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
constexpr Name names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed",
     "mapping of buffer object failed"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const Name& entry(cudaError_t status) {
  static constexpr Name unknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const Name& name : names)
    if (name.status == status) return name;
  return unknown;
}

constexpr int most_devices = 64;
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

cudaError_t enter_to_release() { return start(); }

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
