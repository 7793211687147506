#pragma once
// Memory that records the place and the lifetime of every allocation.
//
//   WatchedMemory memory(block);
//   const auto device = machine::make_host_device(memory);
//   memory.next(Category::gradients);         // of the allocations that follow
//   … memory.map("with arenas")

#include <map>
#include <string>

#include "harness/record/record.h"
#include "machine/base/error.h"
#include "machine/device/arena/memory_block.h"

namespace suite {

class WatchedMemory final : public machine::HostMemory {
 public:
  explicit WatchedMemory(machine::MemoryBlock& block) : block_(block) {}

  void next(machine::Category category) { next_ = category; }

  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    try {
      data = block_.allocate(bytes);
    } catch (const machine::MachineError&) {
      // Earlier allocations are freed while this propagates: the map does not record that.
      ended_ = true;
      map_.asked = bytes;
      map_.free = block_.free_bytes();
      map_.longest = block_.longest_free();
      throw;
    }
    if (ended_) return data;
    held_[data] = map_.blocks.size();
    map_.blocks.push_back(
        {std::string(name(next_)), block_.offset(data), bytes, map_.events++, unended});
    return data;
  }
  void free(void* data, std::size_t bytes) override {
    block_.free(data, bytes);
    const auto found = held_.find(data);
    if (ended_ || found == held_.end()) return;
    map_.blocks[found->second].end = map_.events++;
    held_.erase(found);
  }

  harness::MemoryMap map(std::string name) const {
    harness::MemoryMap map = map_;
    map.name = std::move(name);
    map.bytes = block_.size();
    for (auto& block : map.blocks)
      if (block.end == unended) block.end = map.events;
    return map;
  }

 private:
  static constexpr std::int64_t unended = -1;
  machine::MemoryBlock& block_;
  machine::Category next_ = machine::Category::buffers;
  std::map<void*, std::size_t> held_;  // index of the block
  harness::MemoryMap map_;
  bool ended_ = false;
};

}  // namespace suite
