#pragma once
// A device's memory in large blocks, so that allocating a tensor needs no driver call. A tensor is
// in one arena. Peers identify its place by the number of the arena and an offset. Arenas are kept
// until the device ends, or until memory is exhausted: unused arenas are released then, unless
// peers may have mapped them.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "machine/device/arena/free_list.h"

namespace machine {

class Arenas {
 public:
  static constexpr std::size_t alignment = 512;
  static constexpr std::size_t granule = std::size_t{2} << 20;  // arenas are multiples of this size

  // take allocates memory of the device, or returns null if it is exhausted; give frees such
  // memory. least: minimum bytes of an arena, unless fewer are left; 0: each allocation has its own
  // arena of exactly its bytes.
  Arenas(std::size_t least, std::function<void*(std::size_t)> take,
         std::function<void(void*)> give);
  ~Arenas();
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  void* allocate(std::size_t bytes);  // null when exhausted
  void free(void* data, std::size_t bytes);
  // Gives arenas without allocations back. Returns false if there is none, or if arenas are kept.
  // Changes the numbers of the other arenas.
  bool release_unused();
  // Arenas are not released while the result exists. A link to peers holds it from the first
  // export of an arena until no peer maps one.
  std::shared_ptr<const void> keep() const { return kept_; }

  struct Place {
    std::size_t arena = 0, offset = 0;
    bool operator==(const Place&) const = default;
  };
  // Returns no value if [data, data + bytes) is not within one arena.
  std::optional<Place> find(const void* data, std::size_t bytes) const;
  std::byte* base(std::size_t arena) const { return arenas_[arena].base; }
  std::size_t count() const { return arenas_.size(); }

 private:
  struct Arena {
    std::byte* base;
    std::size_t size;
    FreeList free;
  };
  std::size_t block_bytes(std::size_t bytes) const;

  std::size_t least_;
  std::function<void*(std::size_t)> take_;
  std::function<void(void*)> give_;
  std::vector<Arena> arenas_;
  std::shared_ptr<const int> kept_ = std::make_shared<const int>();
};

}  // namespace machine
