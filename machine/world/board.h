#pragma once
// The status that every rank publishes to the other ranks of its host: its process, its activity,
// and its failure if it has failed. Waits read it to stop waiting for lost ranks, and the watchdog
// reads it to name the hung rank and its activity. Writes take no lock, so a rank can read the
// status of a rank that is stopped or dead.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/base/failure.h"

namespace machine {

enum class RankState : std::uint32_t { absent, running, failed, finished };

inline constexpr std::int32_t nobody = -1, any_of_group = -2;  // values in place of a rank
std::string rank_or_group(int rank);                           // "rank 3", "its group"

// In memory that all ranks of the host map. Texts are atomic words, so reads are not data races. A
// reader may see a mixture of two texts.
struct RankStatus {
  static constexpr int text_words = 64, phase_words = 8;  // 512 and 64 bytes
  std::atomic<RankState> state{RankState::absent};
  std::atomic<std::int64_t> pid{0};
  std::atomic<std::uint64_t> heartbeat{0};        // incremented by the rank's watchdog
  std::atomic<std::uint64_t> progress{0};         // incremented by the rank's work
  std::atomic<std::int32_t> waiting_for{nobody};  // world rank; set while this rank sleeps
  std::atomic<std::uint32_t> on_device{0};        // its threads that wait for their device
  // The current wait, else the last wait or the last transfer queued on the device.
  std::atomic<std::uint32_t> operation{0};  // machine::Operation
  std::atomic<std::int32_t> peer{nobody};
  std::atomic<std::uint64_t> sequence{0};  // message number on that channel
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> device{0};               // Device::identity of the rank's device
  std::atomic<std::uint64_t> activity[text_words]{};  // the case, set by the harness
  std::atomic<std::uint64_t> phase[phase_words]{};    // of the case; empty between cases
  // The failure: its kind + 1 (0: no failure), peer and text.
  std::atomic<std::uint32_t> failure_kind{0};
  std::atomic<std::int32_t> failure_peer{nobody};
  std::atomic<std::uint64_t> failure_text[text_words]{};
};

class Board {
 public:
  Board(int rank, std::vector<RankStatus*> statuses);  // null for ranks of other hosts

  RankStatus& mine() { return *statuses_[rank_]; }
  const RankStatus* of(int rank) const { return statuses_[rank]; }
  int size() const { return static_cast<int>(statuses_.size()); }
  int rank() const { return rank_; }

  // `phase` is the phase of a case. Discards the failure that note() kept.
  void set_activity(std::string_view text, std::string_view phase = {});
  std::string activity(int rank) const;      // "CASE (PHASE)", or the text only
  std::string running_case(int rank) const;  // empty between cases; long names are cut off
  // Publishes an exception that does not end this rank yet. Other ranks may wait for this rank.
  void note(const Failure& failure);
  // Publishes that this rank ends. A failure that note() or fail() has kept stays: it is the cause.
  void fail(const Failure& failure);
  std::optional<Failure> noted(int rank) const;    // by note() or fail()
  std::optional<Failure> failure(int rank) const;  // by fail()
  // Returns the lowest failed rank, or -1.
  int failed_rank() const;
  // Returns "in all_reduce, waiting for rank 1 at message 7 (4096 bytes)", from the status words.
  // If the rank does not wait for another rank, its last wait is added.
  std::string waiting(int rank) const;
  // Returns "last in all_reduce, with rank 1 at message 7 (64 bytes)". Empty while the rank waits,
  // or if it never waited.
  std::string last_wait(int rank) const;

 private:
  int rank_;
  std::vector<RankStatus*> statuses_;
};

}  // namespace machine
