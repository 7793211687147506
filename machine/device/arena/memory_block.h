#pragma once
// Memory with a budget, like a device's memory: one block of bytes for all allocations. It can
// fragment: enough bytes may be free, but no hole long enough.
//
//   MemoryBlock memory(64 << 20, Fit::first);      // outlives the device
//   const auto device = make_host_device(memory);
//   device->allocate(bytes, category);  // on failure the error has free bytes and longest hole
//
// contiguous_arena.h separates allocations that live long from short-lived ones.

#include <cstddef>
#include <memory>

#include "machine/device/arena/free_list.h"
#include "machine/device/device.h"

namespace machine {

class MemoryBlock final : public HostMemory {
 public:
  static constexpr std::size_t alignment = 512;  // an allocation takes a multiple of it

  // Reserves address space for all bytes. Pages are allocated on first use. Throws MachineError
  // naming the bytes if the host cannot allocate such a block.
  explicit MemoryBlock(std::size_t bytes, Fit fit = Fit::best);

  // Throws MachineError naming the requested bytes, the free bytes and the longest hole.
  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) override;

  std::size_t size() const { return size_; }
  std::size_t offset(const void* data) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - base_.get());
  }
  std::size_t free_bytes() const { return free_.bytes(); }
  std::size_t longest_free() const { return free_.longest(); }
  // Returns the highest end of an allocation so far. With first fit, this is the budget that the
  // allocations would have needed.
  std::size_t highest() const { return highest_; }

 private:
  struct Free {
    void operator()(std::byte* base) const;
  };
  std::size_t size_ = 0, highest_ = 0;
  std::unique_ptr<std::byte, Free> base_;
  FreeList free_;
};

// Returns the fraction of the free bytes that one allocation cannot use: 1 - longest / free.
// Returns 0 if no bytes are free.
double external_fragmentation(std::size_t longest_free, std::size_t free_bytes);

}  // namespace machine
