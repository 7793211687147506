#include "suite/trainer/step_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "harness/record/counters.h"
#include "suite/trainer/timeline_record.h"

namespace suite {

using harness::StepBreakdown;
using machine::Part;
using machine::StepTimes;

namespace {

using harness::Better, harness::Nature;

constexpr harness::Counter step_counters[] = {
    {"mfu", "", Better::higher, Nature::speed,
     "model FLOPs over the time, relative to the measured matrix rate"},
    {"steps_per_second", "1/s", Better::higher, Nature::speed, "training steps per second"},
    {"communication_fraction", "", Better::lower, Nature::measured,
     "mean over ranks of the step's fraction in exposed communication"},
    {"bubble_fraction", "", Better::lower, Nature::measured,
     "mean over ranks of the step's fraction waiting for a pipeline's neighbour"},
    {"hidden_communication_fraction", "", Better::neither, Nature::measured,
     "mean over ranks of the communication on another thread, over the step"},
    {"other_fraction", "", Better::lower, Nature::measured,
     "fraction of the step in no part, of the rank with most"}};
const bool step_counters_known = harness::add_counters(step_counters);

// In the order of a step's life; what was not there is left out.
const std::vector<std::string>& parts_in_order() {
  static const std::vector<std::string> names{"data",
                                              "forward",
                                              "recompute",
                                              "backward input",
                                              "backward weights",
                                              "communication tp",
                                              "communication pp",
                                              "communication dp",
                                              "communication embedding",
                                              "bubble",
                                              "optimizer",
                                              "offload",
                                              "other"};
  return names;
}

// A line each: "part 0.0123 backward weights".
std::string lines(std::string_view kind, double seconds, std::string_view name) {
  return fmt::format("{} {} {}\n", kind, seconds, name);
}

struct RankTimes {
  std::map<std::string, double> parts, hidden;
  std::map<int, double> waited;
};

RankTimes read_times(const std::string& text) {
  RankTimes times;
  std::istringstream stream(text);
  std::string kind, name;
  double seconds = 0;
  while (stream >> kind >> seconds && std::getline(stream >> std::ws, name)) {
    if (kind == "part")
      times.parts[name] = seconds;
    else if (kind == "hidden")
      times.hidden[name] = seconds;
    else
      times.waited[std::stoi(name)] = seconds;
  }
  return times;
}

StepBreakdown breakdown_of(const std::vector<RankTimes>& ranks, const machine::Group& group) {
  StepBreakdown result;
  std::set<std::string> there, hidden;
  for (const RankTimes& rank : ranks) {
    for (const auto& [name, seconds] : rank.parts)
      if (seconds > 0) there.insert(name);
    for (const auto& [name, seconds] : rank.hidden) hidden.insert(name);
  }
  for (const std::string& name : parts_in_order())
    if (there.erase(name) > 0 || name == "other") result.parts.push_back(name);
  result.parts.insert(result.parts.end() - 1, there.begin(), there.end());
  result.hidden_parts.assign(hidden.begin(), hidden.end());
  const auto row = [](const std::vector<std::string>& names,
                      const std::map<std::string, double>& times) {
    std::vector<double> values;
    for (const std::string& name : names) {
      const auto found = times.find(name);
      values.push_back(found == times.end() ? 0 : found->second);
    }
    return values;
  };
  for (const RankTimes& rank : ranks) {
    result.seconds.push_back(row(result.parts, rank.parts));
    result.hidden_s.push_back(row(result.hidden_parts, rank.hidden));
    std::vector<double>& waited = result.waited_s.emplace_back(ranks.size());
    for (std::size_t peer = 0; peer < ranks.size(); ++peer)
      if (const auto found = rank.waited.find(group.members[peer]); found != rank.waited.end())
        waited[peer] = found->second;
  }
  return result;
}

// Also what another thread waited for a rank while this one waited for that thread.
std::map<int, double> waited_for(const StepTimes& times) {
  std::map<int, double> seconds = times.waited_s;
  std::vector<StepTimes::Interval> joins;
  for (const StepTimes::Interval& interval : times.own.intervals)
    if (interval.peer == StepTimes::other_thread) joins.push_back(interval);
  for (const StepTimes::Lane& lane : times.others) {
    auto join = joins.begin();
    for (const StepTimes::Interval& wait : lane.intervals) {
      if (wait.peer < 0) continue;
      while (join != joins.end() && join->end_s <= wait.start_s) ++join;
      for (auto at = join; at != joins.end() && at->start_s < wait.end_s; ++at)
        seconds[wait.peer] += std::min(wait.end_s, at->end_s) - std::max(wait.start_s, at->start_s);
    }
  }
  return seconds;
}

void count(harness::Description& description) {
  const StepBreakdown& all = description.step_breakdown;
  const auto ranks = static_cast<double>(all.ranks());
  double communication = 0, bubble = 0, hidden = 0, other = 0;
  for (std::size_t rank = 0; rank < all.seconds.size(); ++rank) {
    double step = 0;
    for (const double seconds : all.seconds[rank]) step += seconds;
    if (step <= 0) continue;
    for (std::size_t i = 0; i < all.parts.size(); ++i) {
      const double part = all.seconds[rank][i] / step;
      if (all.parts[i].starts_with("communication")) communication += part / ranks;
      if (all.parts[i] == "bubble") bubble += part / ranks;
      if (all.parts[i] == "other") other = std::max(other, part);
    }
    for (const double seconds : all.hidden_s[rank]) hidden += seconds / step / ranks;
  }
  description.set("communication_fraction", communication);
  description.set("bubble_fraction", bubble);
  description.set("other_fraction", other);
  if (!all.hidden_parts.empty()) description.set("hidden_communication_fraction", hidden);
}

std::string trace_lines(const StepTimes& times) {
  std::string text;
  const auto add = [&](const StepTimes::Lane& lane) {
    for (const StepTimes::Interval& interval : lane.intervals) {
      const std::string name =
          interval.peer >= 0 ? fmt::format("wait for rank {}", interval.peer)
          : interval.peer == StepTimes::other_thread
              ? fmt::format("{}: wait for the thread", lane.rows[interval.row].text())
              : lane.rows[interval.row].text();
      text += fmt::format("{}\n{}\n{} {}\n", lane.name, name, interval.start_s, interval.end_s);
    }
  };
  add(times.own);
  for (const StepTimes::Lane& lane : times.others) add(lane);
  return text;
}

std::vector<harness::Span> read_trace(const std::vector<std::string>& texts) {
  std::vector<harness::Span> spans;
  harness::Span span;
  for (const std::string& text : texts) {
    std::istringstream stream(text);
    std::string seconds;
    while (std::getline(stream, span.lane) && std::getline(stream, span.name) &&
           std::getline(stream, seconds)) {
      std::istringstream(seconds) >> span.start_s >> span.end_s;
      spans.push_back(span);
    }
    ++span.rank;
  }
  double first = spans.empty() ? 0 : spans.front().start_s;
  for (const harness::Span& one : spans) first = std::min(first, one.start_s);
  for (harness::Span& one : spans) {
    one.start_s -= first;
    one.end_s -= first;
  }
  return spans;
}

}  // namespace

void StepRecorder::end(const pipeline::Timeline& timeline) {
  clock_.stop();
  const StepTimes& times = clock_.times();
  steps_.push_back({times.end_s - times.start_s, times.own.rows, waited_for(times),
                    machine::hidden_communication(times), timeline});
}

std::size_t StepRecorder::typical(double seconds, machine::World& world,
                                  const machine::Group& group) const {
  std::vector<double> mine;
  for (const Totals& step : steps_) mine.push_back(step.seconds);
  std::vector<double> slowest(mine.size());
  for (const std::vector<double>& theirs : world.all_gather(group, mine))
    for (std::size_t i = 0; i < std::min(slowest.size(), theirs.size()); ++i)
      slowest[i] = std::max(slowest[i], theirs[i]);
  // Rank 0 alone knows the time.
  std::size_t nearest = 0;
  for (std::size_t i = 0; i < slowest.size(); ++i)
    if (std::abs(slowest[i] - seconds) < std::abs(slowest[nearest] - seconds)) nearest = i;
  return world.broadcast(group, 0, nearest);
}

void StepRecorder::describe(harness::Description& description, machine::World& world,
                            const machine::Group& group, const TrainingConfig& config) const {
  if (steps_.empty()) return;
  const Totals& step = steps_[typical(description.seconds, world, group)];
  std::string mine;
  for (const StepTimes::Row& row : step.rows) mine += lines("part", row.seconds, row.text());
  for (const auto& [name, seconds] : step.hidden_s)
    mine += lines("hidden", seconds, fmt::format("communication {}", name));
  for (const auto& [peer, seconds] : step.waited_s)
    mine += lines("waited", seconds, std::to_string(peer));
  std::vector<RankTimes> ranks;
  for (const std::string& text : world.all_gather(group, mine)) ranks.push_back(read_times(text));
  description.step_breakdown = breakdown_of(ranks, group);
  description.trace = read_trace(world.all_gather(group, trace_lines(clock_.times())));
  description.breakdown.clear();
  for (std::size_t i = 0; i < description.step_breakdown.parts.size(); ++i)
    description.breakdown.emplace_back(description.step_breakdown.parts[i],
                                       description.step_breakdown.seconds.front()[i]);
  count(description);
  if (config.degrees.pp > 1) describe_pipeline(description, world, group, config, step.timeline);
}

}  // namespace suite
