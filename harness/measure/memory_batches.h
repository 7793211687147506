#pragma once
// How rates of memory are timed: copies within a rank and copies from other ranks.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "harness/measure/batches.h"
#include "machine/base/clock.h"
#include "machine/world/board.h"
#include "machine/world/world.h"

namespace harness {

inline constexpr std::int64_t cached_set = 4 << 20;    // larger sets may exceed the nearest cache
inline constexpr std::int64_t cached_sets = 64 << 20;  // of all ranks; more exceed most caches

inline void show_progress(machine::World& world) {
  world.board().mine().progress.fetch_add(1, std::memory_order_relaxed);
}

inline Batches batches_of(machine::World& world, std::int64_t set_bytes) {
  return {1e-3, set_bytes > cached_set ? 10e-3 : 8e-3, &world.board().mine().progress};
}

// Returns the seconds of one call while all ranks of the group make it. If their sets exceed the
// caches they share the memory. Then only batches count in which all ranks are active, by the
// slowest: a rank whose batches go on after those of the others has their bandwidth, too.
// Collective over the group.
template <class Call, class Finish>
double seconds_of_all(machine::World& world, const machine::Group& group, std::int64_t set_bytes,
                      const Call& call, const Finish& finish) {
  const Batches batches = batches_of(world, set_bytes);
  if (set_bytes * group.size() < cached_sets || group.size() == 1)
    return seconds_of(call, finish, batches);
  const auto seconds_of_batch = [&](int calls) {
    world.barrier(group);
    const double begin = machine::steady_s();
    for (int i = 0; i < calls; ++i) call();
    finish();
    const double mine = machine::steady_s() - begin;
    show_progress(world);
    return std::ranges::max(world.all_gather(group, mine));
  };
  seconds_of_batch(1);
  const double once = seconds_of_batch(1);
  const int calls = static_cast<int>(std::clamp(batches.batch_s / std::max(once, 1e-9), 1.0, 1e6));
  double best = once;
  const int count = static_cast<int>(std::max(1.0, batches.total_s / (once * calls)));
  for (int i = 0; i < count; ++i) best = std::min(best, seconds_of_batch(calls) / calls);
  return best;
}

}  // namespace harness
