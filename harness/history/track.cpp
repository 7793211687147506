#include "harness/history/track.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/history/change_points.h"
#include "harness/measure/statistics.h"
#include "harness/record/json_reading.h"
#include "harness/record/summary.h"
#include "harness/unit/sweep.h"
#include "machine/base/names.h"

namespace harness {
namespace {

// Finds the levels of the runs [first, end), on unchanged software and hardware.
void find_levels(std::vector<Track::At>& runs, std::size_t first, std::size_t end) {
  std::vector<double> seconds;
  for (std::size_t i = first; i < end; ++i) seconds.push_back(runs[i].seconds);
  std::vector<std::size_t> starts = change_points(seconds);
  for (const std::size_t start : starts) runs[first + start].change = true;
  starts.push_back(seconds.size());
  std::size_t from = 0;
  for (const std::size_t to : starts) {
    const double level = median(std::span(seconds).subspan(from, to - from));
    for (std::size_t i = from; i < to; ++i) runs[first + i].level = level;
    from = to;
  }
}

}  // namespace

Track track_of(const History& history, const std::string& name) {
  const std::vector<std::string> known = history.cases();
  if (std::ranges::find(known, name) == known.end()) {
    const std::string near = machine::nearest(name, known);
    throw UsageError(near.empty() ? fmt::format("no run of this history has a case '{}'", name)
                                  : fmt::format("no run of this history has a case '{}'; did you "
                                                "mean '{}'?",
                                                name, near));
  }
  Track track{name, {}};
  const std::vector<StoredRun> runs = history.runs();
  for (const Point& point : history.series(name)) {
    const auto run = std::ranges::find(runs, point.run, &StoredRun::id);
    if (run != runs.end()) track.runs.push_back({*run, point.seconds, {}, false, 0});
  }
  std::size_t first = 0;
  for (std::size_t i = 1; i <= track.runs.size(); ++i) {
    if (i < track.runs.size()) {
      track.runs[i].breaks = breaks(track.runs[i - 1].run, track.runs[i].run);
      if (track.runs[i].breaks.empty()) continue;
    }
    find_levels(track.runs, first, i);
    first = i;
  }
  return track;
}

std::string text(const Track& track) {
  std::string text = fmt::format("{}: {} runs\n", plain(track.name), track.runs.size());
  for (std::size_t i = 0; i < track.runs.size(); ++i) {
    const Track::At& at = track.runs[i];
    for (const Difference& d : at.breaks)
      text += fmt::format("  -- {}: {} -> {}\n", d.field, plain(d.base), plain(d.next));
    if (at.change)
      text +=
          fmt::format("  ** level {} -> {} ({:+.1f} %)\n", seconds_text(track.runs[i - 1].level),
                      seconds_text(at.level), 100 * (at.level / track.runs[i - 1].level - 1));
    text += fmt::format("  {:>4}  {}  {:<20}  {}\n", at.run.id, at.run.date, at.run.commit,
                        seconds_text(at.seconds));
  }
  return text;
}

std::string json(const std::vector<Track>& tracks) {
  using Json = nlohmann::ordered_json;
  Json all{{"schema", "shardmark-history/1"}, {"tracks", Json::array()}};
  for (const Track& track : tracks) {
    Json runs = Json::array();
    for (const Track::At& at : track.runs) {
      Json breaks = Json::array();
      for (const Difference& d : at.breaks)
        breaks.push_back({{"field", d.field}, {"before", d.base}, {"after", d.next}});
      runs.push_back({{"run", at.run.id},
                      {"date", at.run.date},
                      {"commit", at.run.commit},
                      {"seconds", at.seconds},
                      {"level", at.level},
                      {"change", at.change},
                      {"breaks", breaks}});
    }
    all["tracks"].push_back({{"name", track.name}, {"runs", runs}});
  }
  return dumped(all, 1) + "\n";
}

}  // namespace harness
