#pragma once
// One case over time: its levels, and where what it ran on changed.

#include <string>
#include <vector>

#include "harness/history/store.h"

namespace harness {

struct Track {
  std::string name;
  struct At {
    StoredRun run;
    double seconds = 0;
    std::vector<Difference> breaks;  // against the run before: no change of level is sought across
    bool change = false;             // a new level begins here (change_points.h)
    double level = 0;                // median of the runs since the last change or break
  };
  std::vector<At> runs;
};

// Throws UsageError naming the nearest case when there is none of this name.
Track track_of(const History& history, const std::string& name);

std::string text(const Track& track);
// schema "shardmark-history/1", for scripts/figures.py.
std::string json(const std::vector<Track>& tracks);

}  // namespace harness
