#include "machine/virtual_gpu/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "machine/virtual_gpu/configuration.h"
#include "machine/virtual_gpu/errors.h"
#include "machine/virtual_gpu/faults.h"

namespace machine::virtual_gpu {
namespace {

constexpr std::size_t region_bytes = std::size_t{1} << 43, page = 4096, alignment = 256;
// cudaMalloc does not clear memory. Larger allocations keep the zeros, because filling takes time.
constexpr std::size_t most_filled = std::size_t{4} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

struct State {
  std::mutex mutex;
  std::byte *region = nullptr, *next = nullptr;
  std::map<const std::byte*, Allocation> allocations;  // by mapping; also freed ones
  struct Pinned {
    std::size_t bytes;
    bool registered;  // by cudaHostRegister
  };
  std::map<const std::byte*, Pinned> pinned;
  std::map<int, std::size_t> used;  // by device
  int count = 0, users = 0;
  std::vector<Allocation*> accessible;

  State() {
    void* memory = ::mmap(nullptr, region_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    region = next = static_cast<std::byte*>(memory);
    rlimit files{};  // each allocation is a file
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  bool in_region(const std::byte* address) const {
    return address >= region && address < region + region_bytes;
  }
  // Returns the allocation that starts at or before the address.
  Allocation* before(const std::byte* address) {
    auto after = allocations.upper_bound(address);
    return after == allocations.begin() ? nullptr : &std::prev(after)->second;
  }
  static void protect(Allocation& allocation, bool accessible) {
    ::mprotect(allocation.mapping, allocation.mapped,
               accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
    allocation.accessible = accessible;
  }
  Allocation* map(int device, int home, int file, std::size_t bytes, std::size_t mapped) {
    std::byte* mapping = next;
    // A page that is never mapped follows each allocation.
    if (mapping + mapped + page > region + region_bytes) return nullptr;
    if (::mmap(mapping, mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
      return nullptr;
    next = mapping + round_up(mapped, std::size_t{2} << 20) + (std::size_t{2} << 20);
    Allocation& made = allocations[mapping];
    made = {mapping + mapped - round_up(bytes, alignment),
            bytes,
            device,
            home,
            count++,
            true,
            0,
            file,
            mapping,
            mapped};
    return &made;
  }
  void unmap(Allocation& allocation) {
    ::mmap(allocation.mapping, allocation.mapped, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    ::close(allocation.file);
    allocation.live = allocation.accessible = false;
  }
};

State& state() {
  static State& of_process = *new State;  // threads may use it until the process ends
  return of_process;
}

Place place_of(State& all, const std::byte* address, Allocation* allocation) {
  if (all.in_region(address)) {
    const Allocation* found = all.before(address);
    if (!found || address < found->base || address >= found->base + found->bytes)
      return Place::unmapped;
    if (allocation) *allocation = *found;
    return Place::device;
  }
  auto after = all.pinned.upper_bound(address);
  if (after != all.pinned.begin() &&
      address < std::prev(after)->first + std::prev(after)->second.bytes)
    return Place::pinned;
  unsigned char resident = 0;
  const auto start = reinterpret_cast<std::uintptr_t>(address) / page * page;
  const bool mapped = ::mincore(reinterpret_cast<void*>(start), 1, &resident) == 0;
  return mapped ? Place::pageable : Place::unmapped;
}

}  // namespace

std::string text_of(const Allocation& allocation) {
  return fmt::format("{}allocation {} of device {} ({} bytes at {})",
                     allocation.live ? "" : "freed ", allocation.number, allocation.device,
                     allocation.bytes, fmt::ptr(allocation.base));
}

cudaError_t allocate(int device, std::size_t bytes, void** result) {
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const std::size_t mapped = round_up(bytes, page);
  if (allocation_fails(on_host(device)))
    return failed(cudaErrorMemoryAllocation, fmt::format("injected into one of {} bytes", bytes));
  if (bytes > configuration().memory || all.used[device] + mapped > configuration().memory)
    return failed(cudaErrorMemoryAllocation,
                  fmt::format("{} bytes requested, {} of {} allocated on device {}", bytes,
                              all.used[device], configuration().memory, device));
  const int file = ::memfd_create("virtual_gpu", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(mapped)) != 0) {
    if (file >= 0) ::close(file);
    return failed(cudaErrorMemoryAllocation, "no memory on the host");
  }
  Allocation* made = all.map(device, on_host(device), file, bytes, mapped);
  if (!made) {
    ::close(file);
    return failed(cudaErrorMemoryAllocation, "no addresses on the host");
  }
  all.used[device] += mapped;
  if (bytes <= most_filled) {
    State::protect(*made, true);
    std::memset(made->mapping, 0xff, mapped);  // NaN in every floating dtype
    State::protect(*made, false);
  }
  *result = made->base;
  return cudaSuccess;
}

cudaError_t release(void* base) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Allocation* found = all.before(static_cast<std::byte*>(base));
  if (!found || found->base != base)
    return failed(cudaErrorInvalidValue, fmt::format("cudaFree of {}", describe(base)));
  if (!found->live || found->opened > 0)
    return failed(cudaErrorInvalidValue, fmt::format("cudaFree of {}{}", text_of(*found),
                                                     found->opened ? ", which is a peer's" : ""));
  all.used[found->device] -= found->mapped;
  all.unmap(*found);
  return cudaSuccess;
}

cudaError_t map_peer(int device, int home, int file, std::size_t bytes, std::size_t mapped,
                     void** result) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Allocation* made = all.map(device, home, file, bytes, mapped);
  if (!made) return failed(cudaErrorMapBufferObjectFailed, "memory of another process");
  made->opened = 1;
  *result = made->base;
  return cudaSuccess;
}

bool open_again(void* base) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Allocation* found = all.before(static_cast<std::byte*>(base));
  if (!found || found->base != base || !found->live || found->opened == 0) return false;
  ++found->opened;
  return true;
}

cudaError_t unmap_peer(void* base) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  Allocation* found = all.before(static_cast<std::byte*>(base));
  if (!found || found->base != base || !found->live || found->opened == 0)
    return failed(cudaErrorInvalidValue, "not memory of another process");
  if (--found->opened == 0) all.unmap(*found);
  return cudaSuccess;
}

cudaError_t allocate_host(std::size_t bytes, void** result) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* memory = ::mmap(nullptr, round_up(bytes, page), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return failed(cudaErrorMemoryAllocation, "no memory on the host");
  all.pinned[static_cast<std::byte*>(memory)] = {bytes, false};
  *result = memory;
  return cudaSuccess;
}

cudaError_t release_host(void* base) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pinned.find(static_cast<std::byte*>(base));
  if (found == all.pinned.end() || found->second.registered)
    return failed(cudaErrorInvalidValue, fmt::format("{} is not from cudaHostAlloc", base));
  ::munmap(base, round_up(found->second.bytes, page));
  all.pinned.erase(found);
  return cudaSuccess;
}

cudaError_t register_host(void* base, std::size_t bytes) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto* const begin = static_cast<std::byte*>(base);
  const auto pages = [](const std::byte* first, std::size_t length) {
    const auto address = reinterpret_cast<std::uintptr_t>(first);
    return std::pair(address / page, (address + length + page - 1) / page);
  };
  const auto mine = pages(begin, bytes);
  if (bytes == 0 || all.in_region(begin))
    return failed(cudaErrorInvalidValue, fmt::format("{} bytes at {}", bytes, base));
  for (const auto& [other, pinned] : all.pinned) {
    const auto theirs = pages(other, pinned.bytes);
    if (mine.first < theirs.second && theirs.first < mine.second)
      return failed(cudaErrorHostMemoryAlreadyRegistered,
                    fmt::format("{} bytes at {}", bytes, base));
  }
  all.pinned[begin] = {bytes, true};
  return cudaSuccess;
}

cudaError_t unregister_host(void* base) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto found = all.pinned.find(static_cast<std::byte*>(base));
  if (found == all.pinned.end() || !found->second.registered)
    return failed(cudaErrorHostMemoryNotRegistered, fmt::format("{} is not registered", base));
  unsigned char resident = 0;
  const bool mapped = ::mincore(base, 1, &resident) == 0;
  all.pinned.erase(found);
  if (mapped) return cudaSuccess;
  return failed(cudaErrorInvalidValue,
                fmt::format("{} was freed before it was unregistered", base));
}

Place find(const void* address, Allocation* allocation) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  return place_of(all, static_cast<const std::byte*>(address), allocation);
}

cudaError_t check_range(const char* what, const void* address, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const auto* begin = static_cast<const std::byte*>(address);
  if (!all.in_region(begin)) return cudaSuccess;
  const Allocation* found = all.before(begin);
  if (found && found->live && begin >= found->base && begin < found->base + found->bytes &&
      bytes <= found->bytes - static_cast<std::size_t>(begin - found->base))
    return cudaSuccess;
  return failed(cudaErrorInvalidValue,
                found ? fmt::format("{} of {} bytes at offset {} of {}", what, bytes,
                                    begin - found->base, text_of(*found))
                      : fmt::format("{} of {} bytes before all allocations", what, bytes));
}

// A signal handler calls this in a process that is about to fail, so it takes no lock.
std::string describe(const void* address) {
  State& all = state();
  const auto* at = static_cast<const std::byte*>(address);
  if (!all.in_region(at)) return fmt::format("{}, which is not device memory", address);
  const Allocation* found = all.before(at);
  if (!found) return fmt::format("{}, before all allocations", address);
  return fmt::format("{}, at offset {} of {}", address, at - found->base, text_of(*found));
}

namespace {
thread_local int accesses = 0;  // of this thread
}

bool make_accessible(const void* address) {
  State& all = state();
  const auto* at = static_cast<const std::byte*>(address);
  if (accesses == 0 || !all.in_region(at)) return false;
  const std::lock_guard lock(all.mutex);
  Allocation* found = all.before(at);
  if (!found || !found->live || at >= found->mapping + found->mapped) return false;
  if (found->accessible) return true;  // by another thread, since the fault
  State::protect(*found, true);
  all.accessible.push_back(found);
  return true;
}

Access::Access() {
  ++accesses;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  ++all.users;
}

Access::~Access() {
  --accesses;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (--all.users > 0) return;
  for (Allocation* allocation : all.accessible)
    if (allocation->live) State::protect(*allocation, false);
  all.accessible.clear();
}

}  // namespace machine::virtual_gpu
