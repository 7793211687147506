#pragma once
// The free parts of a range of memory, by offset. Takes the smallest hole that fits, or the first,
// and joins neighbouring free parts to one hole (Knuth, The Art of Computer Programming, volume 1,
// section 2.5).

#include <cstddef>
#include <map>
#include <optional>

namespace machine {

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

enum class Fit : unsigned char { best, first };  // the smallest hole, or the lowest offset

class FreeList {
 public:
  explicit FreeList(Fit fit = Fit::best) : fit_(fit) {}

  // Returns the offset of `bytes` free bytes, a multiple of alignment. Empty if no hole fits.
  std::optional<std::size_t> take(std::size_t bytes, std::size_t alignment);
  // Frees the same bytes at an offset from take, or adds new memory.
  void give(std::size_t offset, std::size_t bytes);

  std::size_t bytes() const { return bytes_; }  // all free bytes
  std::size_t longest() const { return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first; }

 private:
  std::optional<std::size_t> take_from(std::size_t offset, std::size_t have, std::size_t bytes,
                                       std::size_t alignment);
  Fit fit_;
  std::size_t bytes_ = 0;
  std::map<std::size_t, std::size_t> by_offset_;      // offset -> bytes
  std::multimap<std::size_t, std::size_t> by_bytes_;  // bytes -> offset
  void insert(std::size_t offset, std::size_t bytes);
  void erase_by_bytes(std::size_t offset, std::size_t bytes);
};

}  // namespace machine
