#pragma once
// Which rank of this host holds the run up, decided from one look at all of them: a pure function,
// so that every way of being lost has a test. The watchdog takes the looks and acts.
//
// A rank is lost when it died, is stopped, does not respond, or stood still for the timeout while
// nobody in sight moved and it waited for nobody. A rank that waits is never at fault, however
// long: ranks that wait for each other in a ring are told, and so are those that wait for their
// devices or in another library, each of which may be held up by any other; nobody is accused then,
// unless one alone waits for its device.

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
  bool here = true;  // its status is in sight: same host
  machine::RankState state = machine::RankState::running;
  std::int64_t pid = 0;
  ProcessState process = ProcessState::alive;
  bool watched = true;                     // its watchdog has begun to beat and did not sign off
  double heartbeat_s = 0, progress_s = 0;  // when each was last seen to change
  double failed_s = std::numeric_limits<double>::infinity();  // when it was first seen failed
  int waiting_for = machine::nobody;
  bool on_device = false;
  std::string host;
  std::string activity, running_case, waiting, last_wait;  // Board's texts
  std::optional<machine::Failure> noted;  // an exception of its unit, or why it failed
};

struct Snapshot {
  int self = 0;
  std::vector<RankView> ranks;  // all of the world, in order
};

struct LossReport {
  enum class Kind { died, stopped, unresponsive, hung, deadlock, failed };
  Kind kind;
  int culprit;
  int reporter;  // the lowest rank of this host that can still speak
  // Its text: who, where, while running what, and what the others were doing.
  machine::Failure failure;
  std::string running_case;  // empty: between cases, or before the first
};

std::optional<LossReport> diagnose(const Snapshot& snapshot, double now_s, double timeout_s);

// How long a rank may be silent and still be asked to report.
inline constexpr double responsive_s = 2;

}  // namespace harness
