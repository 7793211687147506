#include "harness/history/track.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "harness/json/json.h"
#include "harness/measure/statistics.h"
#include "harness/record/record_json.h"
#include "harness/record/summary.h"
#include "harness/unit/sweep.h"
#include "machine/base/names.h"

namespace harness {
namespace {

constexpr int shuffles = 1999;

// Returns doubled mid-ranks minus their mean. Their sum is 0.
std::vector<std::int64_t> centred_ranks(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  std::vector<std::int64_t> ranks;
  for (const double value : values) {
    const auto [first, last] = std::ranges::equal_range(sorted, value);
    const std::int64_t twice = (first - sorted.begin()) + 1 + (last - sorted.begin());
    ranks.push_back(twice - static_cast<std::int64_t>(values.size()) - 1);
  }
  return ranks;
}

struct Cut {
  std::size_t at = 0;  // the first value after it
  std::int64_t difference = 0;
};

Cut largest_cut(const std::vector<std::int64_t>& ranks) {
  Cut best;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i + 1 < ranks.size(); ++i) {
    sum += ranks[i];
    if (std::abs(sum) > best.difference) best = {i + 1, std::abs(sum)};
  }
  return best;
}

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

std::vector<std::size_t> change_points(std::span<const double> values, double level) {
  if (values.size() < 4) return {};
  std::vector<std::int64_t> ranks = centred_ranks(values);
  const Cut cut = largest_cut(ranks);
  if (cut.difference == 0) return {};  // all are equal
  std::mt19937_64 engine(20240701);
  int as_large = 1;  // the series itself is one of its orders
  for (int i = 0; i < shuffles; ++i) {
    std::shuffle(ranks.begin(), ranks.end(), engine);
    as_large += largest_cut(ranks).difference >= cut.difference;
  }
  if (as_large > level * (shuffles + 1)) return {};
  std::vector<std::size_t> found = change_points(values.first(cut.at), level);
  found.push_back(cut.at);
  for (const std::size_t later : change_points(values.subspan(cut.at), level))
    found.push_back(cut.at + later);
  return found;
}

Tracks::Tracks(const History& history) : history_(history), cases_(history.cases()) {
  std::map<Fields, std::size_t> known;
  for (StoredRun& run : history.runs()) {
    Fields environment = run.fields;
    std::erase_if(environment, [](const auto& field) { return is_own_version(field.first); });
    const auto [found, is_new] = known.try_emplace(std::move(environment), environments_.size());
    if (is_new) environments_.push_back(run);
    run.fields.clear();
    const int id = run.id;
    runs_[id] = {std::move(run), found->second};
  }
}

const std::vector<Difference>& Tracks::breaks(std::size_t before, std::size_t after) const {
  const auto [found, is_new] = breaks_.try_emplace({before, after});
  if (is_new) found->second = harness::breaks(environments_[before], environments_[after]);
  return found->second;
}

Track Tracks::of(const std::string& name) const {
  if (!std::ranges::binary_search(cases_, name)) {
    const std::string near = machine::nearest(name, cases_);
    throw UsageError(near.empty() ? fmt::format("no run of this history has a case '{}'", name)
                                  : fmt::format("no run of this history has a case '{}'; did you "
                                                "mean '{}'?",
                                                name, near));
  }
  Track track{name, {}};
  std::vector<std::size_t> environments;
  for (const Point& point : history_.series(name)) {
    const auto found = runs_.find(point.run);
    if (found == runs_.end()) continue;
    track.runs.push_back({found->second.run, point.seconds, {}, false, 0});
    environments.push_back(found->second.environment);
  }
  std::size_t first = 0;
  for (std::size_t i = 1; i <= track.runs.size(); ++i) {
    if (i < track.runs.size()) {
      if (environments[i - 1] == environments[i]) continue;
      track.runs[i].breaks = breaks(environments[i - 1], environments[i]);
      if (track.runs[i].breaks.empty()) continue;
    }
    find_levels(track.runs, first, i);
    first = i;
  }
  return track;
}

Track track_of(const History& history, const std::string& name) { return Tracks(history).of(name); }

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
  return all.dump(1) + "\n";
}

}  // namespace harness
