#include "machine/device/arena/memory_block.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "machine/base/error.h"

namespace machine {

void MemoryBlock::Free::operator()(std::byte* base) const { std::free(base); }

MemoryBlock::MemoryBlock(std::size_t bytes, Fit fit)
    : size_(bytes / alignment * alignment),
      base_(static_cast<std::byte*>(std::aligned_alloc(alignment, std::max(size_, alignment)))),
      free_(fit) {
  if (!base_)
    throw MachineError(fmt::format("cannot allocate a block of {} bytes on the host", bytes));
  if (size_ > 0) free_.give(0, size_);
}

void* MemoryBlock::allocate(std::size_t bytes) {
  // Larger requests are not rounded, because rounding could overflow.
  const auto offset = bytes > size_ ? std::nullopt : free_.take(round_up(bytes, alignment), 1);
  if (!offset)
    throw MachineError(
        fmt::format("cannot allocate {} bytes: {} of {} bytes are free, and the longest free block "
                    "has {}",
                    bytes, free_bytes(), size_, longest_free()),
        Failure::Kind::out_of_memory);
  highest_ = std::max(highest_, *offset + round_up(bytes, alignment));
  return base_.get() + *offset;
}

void MemoryBlock::free(void* data, std::size_t bytes) {
  free_.give(offset(data), round_up(bytes, alignment));
}

double external_fragmentation(std::size_t longest_free, std::size_t free_bytes) {
  if (free_bytes == 0) return 0;
  return 1 - static_cast<double>(longest_free) / static_cast<double>(free_bytes);
}

}  // namespace machine
