#pragma once
// Finds the rank of this host that blocks the run, from one snapshot of all ranks: a pure function,
// so that every kind of loss has a test. The watchdog takes the snapshots and acts.
//
// A rank is lost if it died, is stopped, does not respond, or made no progress for the timeout
// while no visible rank did and it waited for no rank. A waiting rank is never at fault. A ring of
// waiting ranks is reported as a deadlock. Ranks that wait for their devices or in another library
// may be blocked by any other rank, so no rank is blamed, unless only one waits for its device.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "machine/world/board.h"

namespace harness {

enum class ProcessState { unknown, alive, stopped, traced, zombie, gone };

struct RankView {
  int rank = 0;
  bool here = true;  // its status is visible: same host
  machine::RankState state = machine::RankState::running;
  std::int64_t pid = 0;
  ProcessState process = ProcessState::alive;
  bool watched = true;                     // its watchdog has started and did not sign off
  double heartbeat_s = 0, progress_s = 0;  // when each was last seen to change
  double failed_s = std::numeric_limits<double>::infinity();  // when it was first seen failed
  int waiting_for = machine::nobody;
  bool on_device = false;
  std::string host;
  std::string activity, running_case, waiting, last_wait;  // Board's texts
  std::optional<machine::Failure> noted;  // an exception of its unit, or the failure that ended it
};

struct Snapshot {
  int self = 0;
  std::vector<RankView> ranks;  // all of the world, in order
};

struct LossReport {
  enum class Kind { died, stopped, unresponsive, hung, deadlock, failed };
  Kind kind;
  int culprit;
  int reporter;  // the lowest rank of this host that responds
  // Its text: rank, host, activity, and the other ranks' activities.
  machine::Failure failure;
  std::string running_case;  // empty: between cases, or before the first
};

std::optional<LossReport> diagnose(const Snapshot& snapshot, double now_s, double timeout_s);

// A rank without a heartbeat for longer cannot be the reporter.
inline constexpr double responsive_s = 2;

}  // namespace harness
