#pragma once
// One case over time: its levels, and the changes of its software and hardware.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "harness/history/store.h"

namespace harness {

struct Track {
  std::string name;
  struct At {
    StoredRun run;  // without its fields
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

// Tracks of the cases of one history. Reads its runs once, and compares each pair of consecutive
// environments once, so that the tracks of all cases take a time linear in the number of points.
class Tracks {
 public:
  explicit Tracks(const History& history);  // must outlive this
  // Throws UsageError with the nearest case if this name is unknown.
  Track of(const std::string& name) const;
  const std::vector<std::string>& cases() const { return cases_; }

 private:
  struct Run {
    StoredRun run;                // without its fields
    std::size_t environment = 0;  // index in environments_
  };
  const std::vector<Difference>& breaks(std::size_t before, std::size_t after) const;

  const History& history_;
  std::vector<std::string> cases_;
  std::map<int, Run> runs_;              // by id
  std::vector<StoredRun> environments_;  // a run of each environment
  mutable std::map<std::pair<std::size_t, std::size_t>, std::vector<Difference>> breaks_;
};

// Returns the track of one case.
Track track_of(const History& history, const std::string& name);

std::string text(const Track& track);
// schema "shardmark-history/1", for scripts/figures.py.
std::string json(const std::vector<Track>& tracks);

}  // namespace harness
