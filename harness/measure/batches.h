#pragma once
// How a rate is timed: batches of calls, long enough for the clock. A limit is what nothing goes
// beyond, so the best batch counts; but where ranks share a core, the best is one that had the core
// alone: there the mean counts.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "machine/base/clock.h"

namespace harness {

struct Batches {
  double batch_s = 1e-3, total_s = 8e-3;
  bool shares_cores = false;
  // Counted up after every batch, if given: the sign of life that the watchdog looks at. Where
  // other work has the cores, a rate takes many times as long.
  std::atomic<std::uint64_t>* progress = nullptr;
};

// Seconds of one call; finish() waits for what the calls of a batch have begun.
template <class Call, class Finish>
double seconds_of(Call call, Finish finish, Batches batches) {
  const double total_s = batches.shares_cores ? 5 * batches.total_s : batches.total_s;
  const auto lives = [&] {
    if (batches.progress) batches.progress->fetch_add(1, std::memory_order_relaxed);
  };
  call();
  finish();
  lives();
  double best = std::numeric_limits<double>::infinity();
  const double begin = machine::steady_s();
  std::int64_t calls = 0;
  for (int count = 1; std::isinf(best) || machine::steady_s() - begin < total_s;) {
    const double batch_begin = machine::steady_s();
    for (int i = 0; i < count; ++i) call();
    finish();
    lives();
    calls += count;
    const double elapsed = machine::steady_s() - batch_begin;
    if (elapsed < batches.batch_s && machine::steady_s() - begin < total_s) {
      count = static_cast<int>(std::clamp(count * 1.2 * batches.batch_s / std::max(elapsed, 1e-9),
                                          count + 1.0, 10.0 * count));
      continue;
    }
    best = std::min(best, elapsed / count);
  }
  return batches.shares_cores ? (machine::steady_s() - begin) / static_cast<double>(calls) : best;
}

}  // namespace harness
