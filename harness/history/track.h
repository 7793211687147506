#pragma once
// One case over time: its levels, and the changes of its software and hardware.

#include <string>
#include <vector>

#include "harness/history/store.h"

namespace harness {

struct Track {
  std::string name;
  struct At {
    StoredRun run;
    double seconds = 0;
    std::vector<Difference> breaks;  // from the previous run; no change of level is sought across
    bool change = false;             // a new level begins here (change_points.h)
    double level = 0;                // median of the runs since the last change or break
  };
  std::vector<At> runs;
};

// Throws UsageError with the nearest case if this name is unknown.
Track track_of(const History& history, const std::string& name);

std::string text(const Track& track);
// schema "shardmark-history/1", for scripts/figures.py.
std::string json(const std::vector<Track>& tracks);

}  // namespace harness
