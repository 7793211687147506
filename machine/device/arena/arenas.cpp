#include "machine/device/arena/arenas.h"

#include <algorithm>
#include <utility>

#include "machine/base/error.h"

namespace machine {

Arenas::Arenas(std::size_t least, std::function<void*(std::size_t)> take,
               std::function<void(void*)> give)
    : least_(least), take_(std::move(take)), give_(std::move(give)) {}

Arenas::~Arenas() {
  for (const Arena& arena : arenas_) give_(arena.base);
}

std::size_t Arenas::block_bytes(std::size_t bytes) const {
  return least_ == 0 ? bytes : round_up(bytes, alignment);
}

void* Arenas::allocate(std::size_t bytes) {
  if (bytes > ~std::size_t{0} - granule) return nullptr;
  const std::size_t wanted = block_bytes(bytes);
  for (Arena& arena : arenas_) {
    if (least_ == 0 && arena.size != wanted) continue;
    if (const auto offset = arena.free.take(wanted, alignment)) return arena.base + *offset;
  }
  const std::size_t needed = least_ == 0 ? wanted : round_up(wanted, granule);
  std::size_t size = std::max(least_, needed);
  void* base = take_(size);
  if (!base && size > needed) base = take_(size = needed);
  if (!base) return nullptr;
  Arena& arena = arenas_.emplace_back(Arena{static_cast<std::byte*>(base), size, FreeList()});
  arena.free.give(0, size);
  return arena.base + *arena.free.take(wanted, alignment);
}

void Arenas::free(void* data, std::size_t bytes) {
  const auto place = find(data, bytes);
  SHARDMARK_CHECK(place.has_value(), ==, true);
  arenas_[place->arena].free.give(place->offset, block_bytes(bytes));
}

bool Arenas::release_unused() {
  if (kept_.use_count() > 1) return false;
  return std::erase_if(arenas_, [this](const Arena& arena) {
           const bool unused = arena.free.bytes() == arena.size;
           if (unused) give_(arena.base);
           return unused;
         }) > 0;
}

std::optional<Arenas::Place> Arenas::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  for (std::size_t i = 0; i < arenas_.size(); ++i) {
    const Arena& arena = arenas_[i];
    if (std::less<>{}(begin, arena.base) || !std::less<>{}(begin, arena.base + arena.size))
      continue;
    const auto offset = static_cast<std::size_t>(begin - arena.base);
    if (bytes <= arena.size - offset) return Place{i, offset};
  }
  return std::nullopt;
}

}  // namespace machine
