// Memory of the virtual NCCL and its registration (NCCL User Guide, "User Buffer Registration",
// "Window Registration"). Registered memory must be live memory of the communicator's device; a
// window must be aligned memory of ncclMemAlloc. Registered memory cannot be freed.

#include <fmt/format.h>
#include <nccl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/nccl/communicator.h"

namespace machine::virtual_gpu::nccl {
namespace {

struct Registration {
  std::weak_ptr<Communicator> on;
  const std::byte* data;
  std::size_t bytes;
  bool window;
};

// The handles and windows are the keys.
struct Registry {
  std::mutex mutex;  // of the fields below
  std::map<void*, std::size_t> allocated;
  std::map<void*, Registration> registered;
  std::uintptr_t next = 1;
};
Registry& registry() {
  static Registry& of_process = *new Registry;
  return of_process;
}

constexpr std::size_t granule = std::size_t{2} << 20;  // of ncclMemAlloc

// Returns the error of a registration, or ncclSuccess.
ncclResult_t check(const char* name, Communicator& on, const void* data, std::size_t bytes) {
  if (const ncclResult_t ready = on.ready(); ready != ncclSuccess) return ready;
  if (bytes == 0) return refused(ncclInvalidArgument, fmt::format("{}: no bytes", name));
  return check_memory(name, on, data, bytes);
}

void* keep(Registration registration) {
  const std::lock_guard lock(registry().mutex);
  void* handle = reinterpret_cast<void*>(registry().next++);
  registry().registered.emplace(handle, std::move(registration));
  return handle;
}

ncclResult_t release(const char* name, ncclComm_t comm, void* handle, bool window) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().registered.find(handle);
  if (found == registry().registered.end() || found->second.window != window ||
      found->second.on.lock() != on)
    return refused(ncclInvalidArgument,
                   fmt::format("{}: not a registration of this communicator", name));
  registry().registered.erase(found);
  return ncclSuccess;
}

}  // namespace

std::size_t registrations() {
  const std::lock_guard lock(registry().mutex);
  return registry().registered.size();
}

}  // namespace machine::virtual_gpu::nccl

using namespace machine::virtual_gpu;
using namespace machine::virtual_gpu::nccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  if (bytes == 0) return refused(ncclInvalidArgument, "ncclMemAlloc of 0 bytes");
  if (cudaMalloc(data, (bytes + granule - 1) / granule * granule) != cudaSuccess)
    return refused(ncclUnhandledCudaError, cudaGetErrorString(cudaGetLastError()));
  const std::lock_guard lock(registry().mutex);
  registry().allocated[*data] = bytes;
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* data) {
  if (data == nullptr) return ncclSuccess;
  {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().allocated.find(data);
    if (found == registry().allocated.end())
      return refused(ncclInvalidArgument,
                     fmt::format("ncclMemFree: {} is not memory of ncclMemAlloc", describe(data)));
    const auto* begin = static_cast<const std::byte*>(data);
    for (const auto& [handle, one] : registry().registered)
      if (one.on.lock() && one.data < begin + found->second && begin < one.data + one.bytes)
        return refused(ncclInvalidUsage,
                       fmt::format("ncclMemFree: {} is registered", describe(data)));
    registry().allocated.erase(found);
  }
  return cudaFree(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t bytes, void** handle) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  const ncclResult_t result = check("ncclCommRegister", *on, data, bytes);
  if (result == ncclSuccess)
    *handle = keep({on, static_cast<const std::byte*>(data), bytes, false});
  return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return release("ncclCommDeregister", comm, handle, false);
}

#if NCCL_VERSION_CODE >= 22700
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, std::size_t bytes,
                                    ncclWindow_t* window, int /*flags*/) {
  const auto on = end_of(comm);
  if (!on) return ncclInvalidArgument;
  ncclResult_t result = check("ncclCommWindowRegister", *on, data, bytes);
  if (result != ncclSuccess) return result;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return refused(ncclInvalidArgument,
                   fmt::format("ncclCommWindowRegister: {} is not aligned to {} bytes",
                               describe(data), NCCL_WIN_REQUIRED_ALIGNMENT));
  {
    const std::lock_guard lock(registry().mutex);
    auto found = registry().allocated.upper_bound(data);
    const bool allocated =
        found != registry().allocated.begin() &&
        address - reinterpret_cast<std::uintptr_t>((--found)->first) + bytes <= found->second;
    if (!allocated)
      return refused(
          ncclInvalidArgument,
          fmt::format("ncclCommWindowRegister: {} is not memory of ncclMemAlloc", describe(data)));
  }
  *window = static_cast<ncclWindow_t>(keep({on, static_cast<const std::byte*>(data), bytes, true}));
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return release("ncclCommWindowDeregister", comm, window, true);
}
#endif
}
