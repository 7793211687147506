#pragma once
// Diagnoses the machines of a run without another run to compare with: which ranks, hosts and links
// to take out of service, with the evidence.
//
// One wrong result, lost rank or software difference is enough for a finding. A slow part needs a
// relevant slowdown compared with the run's other ranks or pairs (median and MAD) in nearly all
// cases that can show it. Otherwise the finding is INCONCLUSIVE and blames no rank. Time in which a
// rank's core ran something else is excluded.

#include <string>
#include <vector>

#include "harness/record/run_json.h"

namespace harness {

// The levels of health-check runners, and the program's exit code.
enum class Level : int { ok = 0, warning = 1, critical = 2 };
std::string_view name(Level level);  // "OK", "WARN", "CRITICAL"

struct Finding {
  Level level = Level::ok;  // ok: blames and drains no rank
  // "lost rank", "wrong result", "exception", "timeout", "out of memory", "full disk", "slow disk",
  // "different software", "slow link", "slow rank", "shared core", "jitter", "below the limit",
  // "lost GPU", "GPU memory", "slowed GPU", "narrow PCIe", "inactive NVLink", "inconclusive",
  // "wrong input", "injected"
  std::string kind;
  std::vector<int> ranks;  // both ranks of a link
  std::vector<std::string> hosts;
  std::string evidence;
};

struct Health {
  Level level = Level::ok;
  std::vector<Finding> findings;  // worst first
};

// environment: the text of environment.json, or empty.
Health health_of(const RunFile& run, const std::string& environment);
Health health_of(const std::string& directory);

// "health: WARN" and a line each: "  WARN slow link: ranks 2, 3 (node-a, node-b): …".
std::string health_text(const Health& health);
std::string health_json(const Health& health);  // drain.json

}  // namespace harness
