#pragma once
// Memory of the virtual GPUs. Host code must not touch it. An allocation becomes readable and
// writable when a thread that has an Access touches it, until no Access exists. This detects an
// access by host code unless another thread's GPU work uses the allocation at the same moment;
// protection keys would close this gap, but not every CPU has them.
//
// An address is never used twice, so an access to freed memory is always found. An allocation ends
// at the end of a page, so a kernel that runs past it faults (within 255 bytes of alignment).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace machine::virtual_gpu {

struct Allocation {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  int home = 0;    // the number on the host of the device that has the memory
  int number = 0;  // in the order of allocation in this process
  bool live = false;
  int opened = 0;  // by cudaIpcOpenMemHandle: number of opens not yet closed
  int file = -1;   // its memory
  std::byte* mapping = nullptr;
  std::size_t mapped = 0;
  bool accessible = false;  // readable and writable now
};
std::string text_of(const Allocation& allocation);

cudaError_t allocate(int device, std::size_t bytes, void** result);
// Work of the device has ended.
cudaError_t release(void* base);
// Maps memory of another process. The caller owns `file` again if this fails.
cudaError_t map_peer(int device, int home, int file, std::size_t bytes, std::size_t mapped,
                     void** result);
// Counts one more open of memory that is already mapped. Returns false if it is not.
bool open_again(void* base);
cudaError_t unmap_peer(void* base);

cudaError_t allocate_host(std::size_t bytes, void** result);
cudaError_t release_host(void* base);
// Pins memory of the host. Memory must stay mapped, and no page is pinned twice.
cudaError_t register_host(void* base, std::size_t bytes);
cudaError_t unregister_host(void* base);

enum class Place { device, pinned, pageable, unmapped };
// Returns the place of an address, and for device memory its allocation, which may be freed. An
// address of device memory that belongs to no allocation is unmapped.
Place find(const void* address, Allocation* allocation = nullptr);
// Returns an error, with a text that names the allocation, if the bytes at the address are not in
// one live allocation. Host memory is not checked.
cudaError_t check_range(const char* what, const void* address, std::size_t bytes);
// Describes an address for a fault: the allocation and the distance.
std::string describe(const void* address);

// Called by the handler of a fault. Makes the allocation of the address accessible if this thread
// has an Access, and returns whether the instruction can run again.
bool make_accessible(const void* address);

// While it exists, its thread runs GPU work, which can use the memory.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

}  // namespace machine::virtual_gpu
