#pragma once
// What every rank shows the others of its host: which process it is, what it is doing, whether it
// failed and why. Read by waits (to stop waiting for the dead) and by the watchdog (to name who
// hung in what). Written without locks; readable while the writer is stopped or gone.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/base/failure.h"

namespace machine {

enum class RankState : std::uint32_t { absent, running, failed, finished };

inline constexpr std::int32_t nobody = -1, any_of_group = -2;  // in place of a rank
std::string rank_or_group(int rank);                           // "rank 3", "its group"

// Lives in memory that all ranks of the host map. Text is kept in atomic words so that a reader
// never races; it may see a mixture of two texts, never anything else.
struct RankStatus {
  static constexpr int text_words = 64, phase_words = 8;  // 512 and 64 bytes
  std::atomic<RankState> state{RankState::absent};
  std::atomic<std::int64_t> pid{0};
  std::atomic<std::uint64_t> heartbeat{0};  // counted up by the rank's watchdog while it lives
  std::atomic<std::uint64_t> progress{0};   // counted up by the rank's work
  std::atomic<std::int32_t> waiting_for{nobody};  // world rank, while it sleeps
  std::atomic<std::uint32_t> on_device{0};        // its threads that wait for their device
  // Of the wait that it is in or, without one, was in last, or of what it queued on its device.
  std::atomic<std::uint32_t> operation{0};  // machine::Operation
  std::atomic<std::int32_t> peer{nobody};
  std::atomic<std::uint64_t> sequence{0};  // message number on that channel
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> device{0};  // Device::identity of what the rank computes on
  std::atomic<std::uint64_t> activity[text_words]{};  // the case, set by the harness
  std::atomic<std::uint64_t> phase[phase_words]{};    // of the case; empty between cases
  // Of a failure: its kind + 1 (0: none), peer and text.
  std::atomic<std::uint32_t> failure_kind{0};
  std::atomic<std::int32_t> failure_peer{nobody};
  std::atomic<std::uint64_t> failure_text[text_words]{};
};

class Board {
 public:
  Board(int rank, std::vector<RankStatus*> statuses);  // null for ranks of other hosts

  RankStatus& mine() { return *statuses_[static_cast<std::size_t>(rank_)]; }
  const RankStatus* of(int rank) const { return statuses_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(statuses_.size()); }
  int rank() const { return rank_; }

  // Of a case also its phase. Forgets what note() kept.
  void set_activity(std::string_view text, std::string_view phase = {});
  std::string activity(int rank) const;      // "CASE (PHASE)", or the text only
  std::string running_case(int rank) const;  // empty between cases; long names are cut off
  // An exception of this rank that does not end it yet. Other ranks may wait for this rank.
  void note(const Failure& failure);
  // This rank ends. What note() kept stays: it is the cause. The first failure stays too.
  void fail(const Failure& failure);
  std::optional<Failure> noted(int rank) const;    // by note() or fail()
  std::optional<Failure> failure(int rank) const;  // by fail()
  // The lowest rank that said it failed, or -1.
  int failed_rank() const;
  // "in all_reduce, waiting for rank 1 at message 7 (4096 bytes)", from the status words.
  // Of a rank that does not wait for a rank its last wait is added.
  std::string waiting(int rank) const;
  // "last in all_reduce, with rank 1 at message 7 (64 bytes)"; empty while it waits, or if it never
  // did.
  std::string last_wait(int rank) const;

 private:
  void keep(const Failure& failure);

  int rank_;
  std::vector<RankStatus*> statuses_;
};

}  // namespace machine
