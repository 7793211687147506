// The functions of the runtime for devices, memory, copies and kernels.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "machine/virtual_gpu/block.h"
#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/counts.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/faults.h"
#include "machine/virtual_gpu/graphs.h"
#include "machine/virtual_gpu/launch.h"
#include "machine/virtual_gpu/memory.h"
#include "machine/virtual_gpu/streams.h"

namespace machine::virtual_gpu {
namespace {

constexpr std::size_t plain_shared_memory = std::size_t{48} << 10;  // of a block without opt-in

struct Devices {
  std::mutex mutex;
  std::set<std::pair<int, int>> peers;      // enabled: from, to
  std::map<const void*, int> opted_shared;  // by kernel: cudaFuncSetAttribute
};
Devices& devices() {
  static Devices& of_process = *new Devices;
  return of_process;
}

bool reaches(int device, int other) {
  const std::lock_guard lock(devices().mutex);
  return device == other || devices().peers.contains({device, other});
}

bool exists(int device) { return device >= 0 && device < configuration().devices; }

cudaError_t no_device(int device) {
  return failed(cudaErrorInvalidDevice,
                fmt::format("device {} of {}", device, configuration().devices));
}

// Returns the fault of a kernel on `device` that uses the address, or an empty text.
std::string fault_of(int device, const void* address) {
  Allocation allocation;
  switch (find(address, &allocation)) {
    case Place::device:
      if (!allocation.live) return text_of(allocation);
      return reaches(device, allocation.device)
                 ? ""
                 : text_of(allocation) + ", without peer access to that device";
    case Place::pageable:
      return fmt::format("pageable host memory at {}", address);
    case Place::pinned:
    case Place::unmapped:
      return "";
  }
  return "";
}

// Returns whether the address is memory of another GPU whose link to this one is lost.
bool is_cut_off(int device, const void* address) {
  Allocation memory;
  return !configuration().faults.empty() && find(address, &memory) == Place::device &&
         memory.home != on_host(device) && link_is_lost(on_host(device), memory.home);
}
void lose_link(int device) {
  break_device(device, cudaErrorNvlinkUncorrectable, "injected into a transfer");
}

cudaError_t check_grid(dim3 grid, dim3 block) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  const bool valid = grid.x > 0 && grid.y > 0 && grid.z > 0 && threads > 0 && threads <= 1024 &&
                     block.x <= 1024 && block.y <= 1024 && block.z <= 64 && grid.x <= 0x7fffffffu &&
                     grid.y <= 65535 && grid.z <= 65535;
  if (valid) return cudaSuccess;
  return failed(cudaErrorInvalidConfiguration,
                fmt::format("grid ({}, {}, {}), block ({}, {}, {})", grid.x, grid.y, grid.z,
                            block.x, block.y, block.z));
}

cudaError_t check_shared_bytes(const void* kernel, std::size_t bytes) {
  std::size_t allowed = plain_shared_memory;
  {
    const std::lock_guard lock(devices().mutex);
    const auto found = devices().opted_shared.find(kernel);
    if (found != devices().opted_shared.end())
      allowed = std::max(allowed, static_cast<std::size_t>(found->second));
  }
  if (bytes <= allowed) return cudaSuccess;
  return failed(cudaErrorInvalidValue,
                fmt::format("{} bytes of dynamic shared memory; {} are allowed "
                            "(cudaFuncAttributeMaxDynamicSharedMemorySize)",
                            bytes, allowed));
}

// Rows of `bytes` bytes that begin `to_pitch` and `from_pitch` bytes apart.
struct Rows {
  std::size_t to_pitch, from_pitch, bytes, count;
  std::size_t extent(std::size_t pitch) const { return (count - 1) * pitch + bytes; }
};

void copy(int device, void* to, const void* from, const Rows& rows) {
  // A mapping of a peer's memory may have been closed since the call.
  if (check_range("a queued copy", to, rows.extent(rows.to_pitch)) != cudaSuccess ||
      check_range("a queued copy", from, rows.extent(rows.from_pitch)) != cudaSuccess)
    return break_device(device, cudaErrorIllegalAddress, cudaGetErrorString(cudaErrorInvalidValue));
  if (is_cut_off(device, to) || is_cut_off(device, from)) return lose_link(device);
  for (std::size_t row = 0; row < rows.count; ++row)
    std::memmove(static_cast<char*>(to) + row * rows.to_pitch,
                 static_cast<const char*>(from) + row * rows.from_pitch, rows.bytes);
}

// Returns whether the places of a copy are those of its kind.
bool matches(cudaMemcpyKind kind, bool to_device, bool from_device) {
  const cudaMemcpyKind from_host = to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost;
  const cudaMemcpyKind from_memory = to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
  return kind == cudaMemcpyDefault || kind == (from_device ? from_memory : from_host);
}

// A copy from or to pageable memory "might be synchronous" (CUDA Runtime API, "API synchronization
// behavior"). So it may also be late: the memory is read and written when the copy runs.
cudaError_t queue_copy(void* to, const void* from, const Rows& rows, cudaMemcpyKind kind,
                       cudaStream_t stream) {
  const auto queue = queue_of(stream);
  if (!queue) return cudaErrorInvalidResourceHandle;
  VIRTUAL_GPU_CHECK_CAPTURE(may_queue(queue));
  if (rows.bytes == 0 || rows.count == 0) return cudaSuccess;
  const Place to_place = find(to), from_place = find(from);
  if (to_place == Place::unmapped || from_place == Place::unmapped)
    return failed(cudaErrorInvalidValue,
                  fmt::format("a copy of {} bytes {} {}", rows.bytes * rows.count,
                              to_place == Place::unmapped ? "to" : "from",
                              describe(to_place == Place::unmapped ? to : from)));
  if (!matches(kind, to_place == Place::device, from_place == Place::device))
    return failed(cudaErrorInvalidMemcpyDirection, "");
  cudaError_t status = check_range("a copy to", to, rows.extent(rows.to_pitch));
  if (status == cudaSuccess)
    status = check_range("a copy from", from, rows.extent(rows.from_pitch));
  if (status != cudaSuccess) return status;
  const auto between = [&](Place a, Place b) { return to_place == a && from_place == b; };
  if (between(Place::device, Place::pageable) || between(Place::pageable, Place::device))
    ++counts.pageable_copies;
  Operation operation;
  operation.run = [device = queue->device, to, from, rows] { copy(device, to, from, rows); };
  append(queue, std::move(operation));
  return cudaSuccess;
}

// Copies of a launch's arguments. Each begins at an even word: memory of `new` is aligned to two
// words.
struct Arguments {
  explicit Arguments(std::initializer_list<Argument> arguments) {
    static_assert(largest_alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    for (const Argument& argument : arguments) {
      first.push_back(words.size());
      const std::size_t slots = (argument.bytes + largest_alignment - 1) / largest_alignment;
      words.resize(words.size() + slots * (largest_alignment / sizeof(std::uint64_t)));
      std::memcpy(&words[first.back()], argument.value, argument.bytes);
    }
  }
  std::vector<const void*> values() const {
    std::vector<const void*> values;
    for (const std::size_t word : first) values.push_back(&words[word]);
    return values;
  }
  std::vector<std::uint64_t> words;
  std::vector<std::size_t> first;
};

}  // namespace

void queue_kernel(const char* name, const void* kernel, dim3 grid, dim3 block,
                  std::size_t shared_bytes, cudaStream_t stream,
                  std::initializer_list<Argument> arguments, Thread thread) {
  if (enter() != cudaSuccess) return;
  const auto queue = queue_of(stream);
  if (!queue || may_queue(queue) != cudaSuccess) return;
  const int device = queue->device;
  if (device != current_device()) {
    failed(cudaErrorInvalidResourceHandle,
           fmt::format("a launch in a stream of device {}, but the current device is {}", device,
                       current_device()));
    return;
  }
  if (check_grid(grid, block) != cudaSuccess) return;
  if (check_shared_bytes(kernel, shared_bytes) != cudaSuccess) return;
  const Arguments copied(arguments);
  bool cut_off = false;
  for (const std::uint64_t word : copied.words) {
    if (word < (std::uint64_t{1} << 40) || word >= (std::uint64_t{1} << 47)) continue;
    cut_off |= is_cut_off(device, reinterpret_cast<const void*>(word));
    const std::string fault = fault_of(device, reinterpret_cast<const void*>(word));
    if (fault.empty()) continue;
    break_device(device, cudaErrorIllegalAddress,
                 fmt::format("an argument of {} is {}", name, fault));
    return;
  }
  Operation operation;
  operation.may_hold = std::uint64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z == 1;
  operation.run = [device, launch = Grid{name, grid, block, shared_bytes}, kernel, thread, copied,
                   cut_off, words = kept_words(copied.words), number = count_launch(device)] {
    if (cut_off) return lose_link(device);
    const std::vector<const void*> values = copied.values();
    run_launch(device, number, launch.kernel, words, [&] {
      const Outcome outcome = run_grid(launch, [&] { thread(kernel, values.data()); });
      if (outcome.status != cudaSuccess) break_device(device, outcome.status, outcome.text);
    });
  };
  append(queue, std::move(operation));
}

}  // namespace machine::virtual_gpu

using namespace machine::virtual_gpu;

extern "C" {

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (configuration().devices == 0) return failed(cudaErrorNoDevice, "");
  *count = configuration().devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  // A thread leaves a lost device.
  if (enter_to_release() == cudaErrorInitializationError) return cudaErrorInitializationError;
  if (!exists(device)) return no_device(device);
  set_current_device(device);
  return failed_device(
      device);  // "may also return error codes from previous, asynchronous launches"
}

cudaError_t cudaGetDevice(int* device) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (!exists(device)) return no_device(device);
  const Configuration& all = configuration();
  *properties = {};
  const std::string name = fmt::format("virtual GPU (sm_{}{})", all.major, all.minor);
  std::memcpy(properties->name, name.c_str(), name.size() + 1);
  // The same in all processes of the host, and of no other host.
  std::memcpy(properties->uuid.bytes, "virtual GPU", 11);
  const std::uint32_t host = host_number();
  std::memcpy(properties->uuid.bytes + 11, &host, sizeof host);
  properties->uuid.bytes[15] = static_cast<char>(on_host(device) + 1);
  properties->totalGlobalMem = all.memory;
  properties->sharedMemPerBlock = plain_shared_memory;
  properties->sharedMemPerBlockOptin = most_shared_memory(all);
  properties->sharedMemPerMultiprocessor = most_shared_memory(all) + 1024;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = all.major;
  properties->minor = all.minor;
  properties->multiProcessorCount = 1;
  properties->canMapHostMemory = properties->unifiedAddressing = 1;
  properties->concurrentKernels = properties->ipcEventSupported = 1;
  properties->pciBusID = on_host(device) + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (!exists(device)) return no_device(device);
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(most_shared_memory(configuration()));
      return cudaSuccess;
    case cudaDevAttrClockRate:  // kHz
      *value = 1'000'000;
      return cudaSuccess;
    default:
      return failed(cudaErrorNotSupported, "the virtual GPU has no such attribute");
  }
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (!exists(device) || !exists(peer)) return no_device(exists(device) ? peer : device);
  *can = device != peer && configuration().peers;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  VIRTUAL_GPU_ENTER;
  if (flags != 0) return failed(cudaErrorInvalidValue, "flags must be 0");
  if (!exists(peer) || peer == current_device()) return no_device(peer);
  if (!configuration().peers) return failed(cudaErrorPeerAccessUnsupported, "");
  const std::lock_guard lock(devices().mutex);
  if (!devices().peers.insert({current_device(), peer}).second)
    return failed(cudaErrorPeerAccessAlreadyEnabled, "");
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  VIRTUAL_GPU_ENTER;
  VIRTUAL_GPU_CHECK_CAPTURE(may_wait_for_device(current_device()));
  run_device(current_device());
  return enter();
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  VIRTUAL_GPU_ENTER;
  VIRTUAL_GPU_CHECK_CAPTURE(may_call_unsafe());
  install_fault_handlers();
  return allocate(current_device(), bytes, address);
}

// Waits for all work of the device.
cudaError_t cudaFree(void* address) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  if (address == nullptr) return cudaSuccess;
  VIRTUAL_GPU_CHECK_CAPTURE(may_call_unsafe());
  Allocation allocation;
  if (find(address, &allocation) == Place::device && allocation.live) run_device(allocation.device);
  return release(address);
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned int /*flags*/) {
  VIRTUAL_GPU_ENTER;
  VIRTUAL_GPU_CHECK_CAPTURE(may_call_unsafe());
  return allocate_host(bytes, address);
}

cudaError_t cudaFreeHost(void* address) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  return address == nullptr ? cudaSuccess : release_host(address);
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned int /*flags*/) {
  VIRTUAL_GPU_ENTER;
  return register_host(address, bytes);
}

cudaError_t cudaHostUnregister(void* address) {
  VIRTUAL_GPU_ENTER_TO_RELEASE;
  return unregister_host(address);
}

// Addresses are unified.
cudaError_t cudaHostGetDevicePointer(void** seen, void* address, unsigned int /*flags*/) {
  VIRTUAL_GPU_ENTER;
  if (find(address) != Place::pinned)
    return failed(cudaErrorInvalidValue, fmt::format("{} is not pinned memory", address));
  *seen = address;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  return queue_copy(to, from, {bytes, bytes, bytes, 1}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  VIRTUAL_GPU_ENTER;
  if (width > to_pitch || width > from_pitch)
    return failed(
        cudaErrorInvalidPitchValue,
        fmt::format("rows of {} bytes begin {} and {} bytes apart", width, to_pitch, from_pitch));
  return queue_copy(to, from, {to_pitch, from_pitch, width, height}, kind, stream);
}

// ---- kernels

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  VIRTUAL_GPU_ENTER;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
    return failed(cudaErrorNotSupported, "the virtual GPU has no such attribute");
  ++counts.function_attributes;
  if (value < 0 || static_cast<std::size_t>(value) > most_shared_memory(configuration()))
    return failed(cudaErrorInvalidValue,
                  fmt::format("{} bytes of dynamic shared memory; a block can have at most {}",
                              value, most_shared_memory(configuration())));
  const std::lock_guard lock(devices().mutex);
  devices().opted_shared[kernel] = value;
  return cudaSuccess;
}
}
