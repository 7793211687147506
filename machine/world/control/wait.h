#pragma once
// Waits of a rank. A wait spins briefly if every active rank has its own core, then yields the core
// some tens of times. Then it sleeps on a futex that the other side wakes. It sleeps after the
// first long yield, because every further yield to a busy program may cost another time slice. A
// sleeping wait checks every 50 ms whether another rank has failed. At the timeout it throws an
// error that names both ranks.

#include <atomic>
#include <cstdint>
#include <thread>

#include "machine/base/clock.h"
#include "machine/base/operation.h"
#include "machine/world/board.h"
#include "machine/world/step_clock.h"

namespace machine {

// The event that a rank waits for. Set before a wait; read only if the wait does not end at once.
struct Waiting {
  Operation operation = Operation::none;
  int peer = nobody;  // world rank
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  const char* for_what = "send";  // "rank 0 waited … for rank 1 to send message 7"
};

struct WaitPolicy {
  Board* board = nullptr;
  double timeout_s = 60;  // infinity: only a failed rank ends the wait
  bool oversubscribed = false;
  bool long_waits_are_normal = false;  // control plane: sleep soon
  // Called before every sleep, if set. MPI moves a message only while its receiver is inside MPI. A
  // rank that sleeps elsewhere would leave a peer's send unfinished.
  void (*before_sleep)() = nullptr;
};

class Wait {
 public:
  explicit Wait(WaitPolicy policy) : policy_(policy) {}
  const WaitPolicy& policy() const { return policy_; }

  // Waits until `word` has reached `wanted`, modulo 2^32.
  void until_reached(std::atomic<std::uint32_t>& word, std::uint32_t wanted,
                     std::atomic<std::uint32_t>& sleeping, const Waiting& waiting) const {
    const auto reached = [&] {
      return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - wanted) >= 0;
    };
    if (reached()) return;
    slow(word, sleeping, waiting, reached);
  }
  // Waits until poll() returns true. poll makes the progress (MPI_Test).
  template <class Poll>
  void polling(Poll poll, const Waiting& waiting) const;
  // Reports that a wait in stream order was queued on the device.
  void queued(const Waiting& waiting) const { tell(policy_, waiting, false); }

  // Marks, while it exists, that this rank is in a call of another library. The call may wait for
  // any rank of the group.
  class InLibrary {
   public:
    InLibrary(const WaitPolicy& policy, Operation operation, std::uint64_t call,
              std::uint64_t bytes);
    ~InLibrary();
    InLibrary(const InLibrary&) = delete;
    InLibrary& operator=(const InLibrary&) = delete;

   private:
    Board* board_;
  };

  // Stores value and wakes the threads that sleep on word.
  static void publish(std::atomic<std::uint32_t>& word, std::uint32_t value,
                      std::atomic<std::uint32_t>& sleeping) {
    // Sequentially consistent with the sleeper's store of `sleeping` and load of `word`: at least
    // one of the two sees the other.
    word.store(value, std::memory_order_seq_cst);
    if (sleeping.load(std::memory_order_seq_cst) != 0) wake(word, sleeping);
  }

 private:
  template <class Ready>
  void slow(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleeping,
            const Waiting& waiting, Ready ready) const;
  static void wake(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleeping);

  // Writes `waiting` on the board and, if `sleeps`, that this rank sleeps.
  static void tell(const WaitPolicy& policy, const Waiting& waiting, bool sleeps);

  static void sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen);  // 50 ms at most
  static void nap(int round);                                               // in a polling wait
  int spins() const { return policy_.oversubscribed || policy_.long_waits_are_normal ? 0 : 4000; }
  int yields() const { return policy_.long_waits_are_normal ? 2 : 60; }
  // Yields until ready() or until a wait should sleep. Returns whether it is ready.
  template <class Ready>
  bool yield_until(Ready ready) const;

  // Adds its lifetime to waited_s() (waited.h).
  class Waited {
   public:
    Waited() = default;
    ~Waited();
    Waited(const Waited&) = delete;
    Waited& operator=(const Waited&) = delete;

   private:
    double start_s_ = steady_s();
  };

  // Marks the wait on the board; check() throws Timeout or PeerFailure.
  class Watch {
   public:
    Watch(const WaitPolicy& policy, const Waiting& waiting);
    ~Watch();
    void check() const;

   private:
    const WaitPolicy& policy_;
    const Waiting& waiting_;
    double start_s_ = steady_s();
  };

  WaitPolicy policy_;
};

template <class Ready>
bool Wait::yield_until(Ready ready) const {
  constexpr double long_s = 2e-4;
  double before_s = steady_s();
  for (int i = 0; i < yields(); ++i) {
    std::this_thread::yield();
    if (ready()) return true;
    const double now_s = steady_s();
    if (now_s - before_s > long_s) return false;
    before_s = now_s;
  }
  return false;
}

template <class Ready>
void Wait::slow(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleeping,
                const Waiting& waiting, Ready ready) const {
  const DuringWait during(waiting.peer);
  tell(policy_, waiting, false);
  for (int i = 0; i < spins(); ++i) {
    __builtin_ia32_pause();
    if (ready()) return;
  }
  const Waited waited;
  if (yield_until(ready)) return;
  const Watch watch(policy_, waiting);
  while (true) {
    sleeping.store(1, std::memory_order_seq_cst);
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (ready()) break;
    if (policy_.before_sleep) policy_.before_sleep();
    sleep(word, seen);
    if (ready()) break;
    watch.check();
  }
  sleeping.store(0, std::memory_order_relaxed);
}

template <class Poll>
void Wait::polling(Poll poll, const Waiting& waiting) const {
  if (poll()) return;
  const DuringWait during(waiting.peer);
  tell(policy_, waiting, false);
  for (int i = 0; i < spins() / 4 + 1; ++i)
    if (poll()) return;
  const Waited waited;
  if (yield_until(poll)) return;
  const Watch watch(policy_, waiting);
  for (int round = 0; !poll(); ++round) {
    nap(round);
    if (round % 64 == 63) watch.check();
  }
}

}  // namespace machine
