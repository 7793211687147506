#pragma once
// Memory with a budget, as a device has it: one block of bytes, from which allocations are cut and
// to which they go back. It can fragment: enough bytes may be free, and no hole long enough.
//
//   MemoryBlock memory(64 << 20, Fit::first);      // outlives the device
//   const auto device = make_host_device(memory);
//   device->allocate(bytes, category);             // out of memory: what is free, and how long
//
// Where allocations of a kind live long and others come and go between them, contiguous_arena.h
// keeps the two apart.

#include <cstddef>
#include <memory>

#include "machine/device/arena/free_list.h"
#include "machine/device/device.h"

namespace machine {

class MemoryBlock final : public HostMemory {
 public:
  static constexpr std::size_t alignment = 512;  // an allocation takes a multiple of it

  // Address space for all of it; pages are taken when touched. Throws MachineError naming the bytes
  // where the host has no such block.
  explicit MemoryBlock(std::size_t bytes, Fit fit = Fit::best);

  // Throws MachineError naming the bytes asked for, those that are free, and the longest hole.
  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) override;

  std::size_t size() const { return size_; }
  std::size_t offset(const void* data) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - base_.get());
  }
  std::size_t free_bytes() const { return free_.bytes(); }
  std::size_t longest_free() const { return free_.longest(); }
  // Where the highest allocation so far ended: by first fit, the budget that these would have
  // needed.
  std::size_t highest() const { return highest_; }

 private:
  struct Free {
    void operator()(std::byte* base) const;
  };
  std::size_t size_ = 0, highest_ = 0;
  std::unique_ptr<std::byte, Free> base_;
  FreeList free_;
};

// The part of the free bytes that one allocation cannot have: 1 - longest / free, and 0 where
// nothing is free.
double external_fragmentation(std::size_t longest_free, std::size_t free_bytes);

}  // namespace machine
