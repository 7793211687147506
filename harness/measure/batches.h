#pragma once
// Times a rate by batches of calls that are long enough for the clock. A limit is an upper bound,
// so the best batch counts.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "machine/base/clock.h"

namespace harness {

struct Batches {
  double batch_s = 1e-3, total_s = 8e-3;
  // Incremented after every batch, if given: the watchdog's sign of life. On busy cores a rate
  // takes many times as long.
  std::atomic<std::uint64_t>* progress = nullptr;
};

// Returns the seconds of one call. finish() waits for the work that the calls of a batch started.
template <class Call, class Finish>
double seconds_of(Call call, Finish finish, Batches batches) {
  const auto lives = [&] {
    if (batches.progress) batches.progress->fetch_add(1, std::memory_order_relaxed);
  };
  call();
  finish();
  lives();
  double best = std::numeric_limits<double>::infinity();
  const double begin = machine::steady_s();
  for (int count = 1; std::isinf(best) || machine::steady_s() - begin < batches.total_s;) {
    const double batch_begin = machine::steady_s();
    for (int i = 0; i < count; ++i) call();
    finish();
    lives();
    const double elapsed = machine::steady_s() - batch_begin;
    if (elapsed < batches.batch_s && machine::steady_s() - begin < batches.total_s) {
      count = static_cast<int>(std::clamp(count * 1.2 * batches.batch_s / std::max(elapsed, 1e-9),
                                          count + 1.0, 10.0 * count));
      continue;
    }
    best = std::min(best, elapsed / count);
  }
  return best;
}

}  // namespace harness
