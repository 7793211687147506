#pragma once
// How rates of memory are timed: copies within a rank and copies from other ranks.

#include <atomic>
#include <cstdint>

#include "harness/measure/batches.h"
#include "machine/world/board.h"
#include "machine/world/world.h"

namespace harness {

inline constexpr std::int64_t cached_set = 4 << 20;  // larger sets may exceed the nearest cache

inline void show_progress(machine::World& world) {
  world.board().mine().progress.fetch_add(1, std::memory_order_relaxed);
}

inline Batches batches_of(machine::World& world, std::int64_t set_bytes) {
  return {1e-3, set_bytes > cached_set ? 10e-3 : 8e-3, &world.board().mine().progress};
}

}  // namespace harness
