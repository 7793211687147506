#pragma once
// One case over time: its levels, and the changes of its software and hardware.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "harness/history/store.h"

namespace harness {

struct Track {
  std::string name;
  struct At {
    StoredRun run;
    double seconds = 0;
    std::vector<Difference> breaks;  // from the previous run; levels end here
    bool change = false;             // a new level begins here (change_points)
    double level = 0;                // median of the runs since the last change or break
  };
  std::vector<At> runs;
};

// Returns the first indices of new levels, ascending, by Pettitt's test (Pettitt 1979,
// doi:10.2307/2346729): the split whose two sides differ most in rank. It is significant if at most
// this fraction of shuffles of the series has a split with such a difference. Repeats within both
// parts. Ranks limit the weight of outliers. The shuffles are always the same. At 0.01 a dozen
// values can show a change, six on either side.
std::vector<std::size_t> change_points(std::span<const double> values, double level = 0.01);

// Throws UsageError with the nearest case if this name is unknown.
Track track_of(const History& history, const std::string& name);

std::string text(const Track& track);
// schema "shardmark-history/1", for scripts/figures.py.
std::string json(const std::vector<Track>& tracks);

}  // namespace harness
