#include "machine/device/arena/free_list.h"

#include <iterator>

#include "machine/base/error.h"

namespace machine {

void FreeList::insert(std::size_t offset, std::size_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
}

void FreeList::erase_by_bytes(std::size_t offset, std::size_t bytes) {
  auto [first, last] = by_bytes_.equal_range(bytes);
  while (first != last && first->second != offset) ++first;
  SHARDMARK_CHECK(first != last, ==, true);
  by_bytes_.erase(first);
}

std::optional<std::size_t> FreeList::take(std::size_t bytes, std::size_t alignment) {
  std::optional<std::size_t> taken;
  if (fit_ == Fit::best) {
    for (auto hole = by_bytes_.lower_bound(bytes); hole != by_bytes_.end() && !taken;) {
      const auto [have, offset] = *hole++;
      taken = take_from(offset, have, bytes, alignment);
    }
  } else {
    for (auto hole = by_offset_.begin(); hole != by_offset_.end() && !taken;) {
      const auto [offset, have] = *hole++;
      taken = take_from(offset, have, bytes, alignment);
    }
  }
  return taken;
}

// Takes the bytes from the hole at `offset`, if they fit.
std::optional<std::size_t> FreeList::take_from(std::size_t offset, std::size_t have,
                                               std::size_t bytes, std::size_t alignment) {
  const std::size_t begin = round_up(offset, alignment);
  if (begin + bytes > offset + have) return std::nullopt;
  erase_by_bytes(offset, have);
  by_offset_.erase(offset);
  if (begin > offset) insert(offset, begin - offset);
  if (begin + bytes < offset + have) insert(begin + bytes, offset + have - begin - bytes);
  bytes_ -= bytes;
  return begin;
}

void FreeList::give(std::size_t offset, std::size_t bytes) {
  bytes_ += bytes;
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first == offset + bytes) {
    bytes += next->second;
    erase_by_bytes(next->first, next->second);
    next = by_offset_.erase(next);
  }
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      bytes += previous->second;
      erase_by_bytes(previous->first, previous->second);
      by_offset_.erase(previous);
    }
  }
  insert(offset, bytes);
}

}  // namespace machine
