#pragma once
// A rank's memory that the other ranks of its host map. It is an anonymous file (memfd), so the
// system frees it however the rank ends. All tensors of a host device are in it, so every peer can
// read them in place.

#include <cstddef>

#include "machine/device/arena/free_list.h"
#include "machine/device/device.h"

namespace machine {

class Segment final : public HostMemory {
 public:
  // Reserves as much address space as the host has memory. Pages are allocated on first use. The
  // first `header` bytes are zero and outside the allocator.
  explicit Segment(std::size_t header);
  ~Segment() override;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) override;

 private:
  int descriptor_ = -1;
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  FreeList free_;
};

// Another rank's segment, mapped here.
class MappedSegment {
 public:
  // Throws MachineError naming pid and reason.
  MappedSegment(long pid, int descriptor, std::size_t size);
  ~MappedSegment();
  MappedSegment(const MappedSegment&) = delete;
  MappedSegment& operator=(const MappedSegment&) = delete;
  std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace machine
