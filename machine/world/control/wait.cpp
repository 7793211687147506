#include "machine/world/control/wait.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "machine/base/error.h"
#include "machine/base/futex.h"
#include "machine/world/control/waited.h"

namespace machine {
namespace {

thread_local double slept_s = 0;

}  // namespace

double waited_s() { return slept_s; }
void add_waited_s(double seconds) { slept_s += seconds; }

void Wait::sleep(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  // The first sleep is short: a sender without a fence may have missed that this rank sleeps
  // (link/channel.h).
  constexpr double first_s = 0.001, slice_s = 0.05;
  sleep_on(word, seen, first_s);
  if (word.load(std::memory_order_acquire) == seen) sleep_on(word, seen, slice_s - first_s);
}

void Wait::wake(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& sleeping) {
  sleeping.store(0, std::memory_order_relaxed);
  machine::wake(word);
}

void Wait::nap(int round) {
  const timespec slice{0, std::min(20'000L << std::min(round / 16, 6), 1'000'000L)};
  nanosleep(&slice, nullptr);
}

void Wait::tell(const WaitPolicy& policy, const Waiting& waiting, bool sleeps) {
  if (!policy.board) return;
  RankStatus& mine = policy.board->mine();
  // Another thread of this rank sleeps. Keep the status of that wait.
  if (!sleeps && mine.waiting_for.load(std::memory_order_relaxed) != nobody) return;
  mine.operation.store(static_cast<std::uint32_t>(waiting.operation), std::memory_order_relaxed);
  mine.peer.store(waiting.peer, std::memory_order_relaxed);
  mine.sequence.store(waiting.number, std::memory_order_relaxed);
  mine.bytes.store(waiting.bytes, std::memory_order_relaxed);
  if (sleeps) mine.waiting_for.store(waiting.peer, std::memory_order_relaxed);
}

Wait::InLibrary::InLibrary(const WaitPolicy& policy, Operation operation, std::uint64_t call,
                           std::uint64_t bytes)
    : board_(policy.board) {
  tell(policy, {operation, any_of_group, call, bytes}, true);
}
Wait::InLibrary::~InLibrary() {
  if (board_) board_->mine().waiting_for.store(nobody, std::memory_order_relaxed);
}

Wait::Waited::~Waited() { add_waited_s(steady_s() - start_s_); }

Wait::Watch::Watch(const WaitPolicy& policy, const Waiting& waiting)
    : policy_(policy), waiting_(waiting) {
  tell(policy, waiting, true);
}

Wait::Watch::~Watch() {
  if (!policy_.board) return;
  policy_.board->mine().waiting_for.store(nobody, std::memory_order_relaxed);
  policy_.board->mine().progress.fetch_add(1, std::memory_order_relaxed);
}

void Wait::Watch::check() const {
  if (!policy_.board) return;
  const Board& board = *policy_.board;
  const int failed = board.failed_rank();
  if (failed >= 0 && failed != board.rank())
    throw PeerFailure(fmt::format("rank {} failed: {}", failed, board.failure(failed)->text),
                      board.rank(), failed);
  const double waited_s = steady_s() - start_s_;
  if (waited_s > policy_.timeout_s)
    throw Timeout(
        fmt::format("rank {} waited {:.1f} s in {} for {} to {} message {} ({} bytes), during {}",
                    board.rank(), waited_s, name(waiting_.operation), rank_or_group(waiting_.peer),
                    waiting_.for_what, waiting_.number, waiting_.bytes,
                    board.activity(board.rank())),
        board.rank(), std::max(waiting_.peer, nobody));
  tell(policy_, waiting_, true);  // again: a wait of another thread may have ended meanwhile
}

}  // namespace machine
