#pragma once
// Sleeping on a word that other threads and processes change. The futex is shared, not private.

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

namespace machine {

using Word = std::atomic<std::uint32_t>;

// Returns when the word is not `value`, after the time, or earlier.
inline void sleep_on(Word& word, std::uint32_t value, double seconds) {
  const timespec limit{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}
inline void wake(Word& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

}  // namespace machine
