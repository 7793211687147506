#pragma once
// Which parts of a range of memory are free, by offset: the smallest hole that fits is taken, and
// neighbours that are free are one hole again.

#include <cstddef>
#include <map>
#include <optional>

namespace machine {

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

class FreeList {
 public:
  // The offset of `bytes` that are free, a multiple of alignment; nothing when no hole fits.
  std::optional<std::size_t> take(std::size_t bytes, std::size_t alignment);
  // What take gave, with the same bytes; or memory that is new here.
  void give(std::size_t offset, std::size_t bytes);

 private:
  std::map<std::size_t, std::size_t> by_offset_;      // offset -> bytes
  std::multimap<std::size_t, std::size_t> by_bytes_;  // bytes -> offset
  void insert(std::size_t offset, std::size_t bytes);
  void erase_by_bytes(std::size_t offset, std::size_t bytes);
};

}  // namespace machine
