#pragma once
// What a run says of the machines it ran on, without another run to hold it against: which ranks,
// hosts and links to take out of service, with the evidence.
//
// Wrong results, lost ranks and differing software are named from one occurrence. What is only slow
// is named where it is slow by a practical amount, against the other ranks or pairs of the run
// (median and MAD), in nearly all cases that could show it; otherwise it is INCONCLUSIVE, which
// accuses nobody. Time for which a rank's core ran something else is set apart.

#include <string>
#include <vector>

#include "harness/record/run_json.h"

namespace harness {

// As health-check runners have them; the program's exit code.
enum class Level : int { ok = 0, warning = 1, critical = 2 };
std::string_view name(Level level);  // "OK", "WARN", "CRITICAL"

struct Finding {
  Level level = Level::ok;  // ok: blames no rank, and drains nothing
  // "lost rank", "wrong result", "exception", "timeout", "out of memory", "full disk", "slow disk",
  // "different software", "slow link", "slow rank", "shared core", "jitter", "below the limit",
  // "inconclusive", "wrong input", "injected"
  std::string kind;
  std::vector<int> ranks;  // of a link both
  std::vector<std::string> hosts;
  std::string evidence;
};

struct Health {
  Level level = Level::ok;
  std::vector<Finding> findings;  // the worst first
};

// environment: the text of environment.json, or empty.
Health health_of(const RunFile& run, const std::string& environment);
Health health_of(const std::string& directory);

// "health: WARN" and a line each: "  WARN slow link: rank 2 (node-a), rank 3 (node-b): …".
std::string health_text(const Health& health);
std::string health_json(const Health& health);  // drain.json

}  // namespace harness
