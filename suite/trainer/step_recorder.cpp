#include "suite/trainer/step_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

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
     "model FLOPs over the time, of the GPU vendor's dense peak or a host's matrix rate"},
    {"mfu_of_gemm", "", Better::higher, Nature::speed,
     "model FLOPs over the time, of the GPU's best sustained matrix product"},
    {"peak_TFLOPs", "TFLOP/s", Better::neither, Nature::speed,
     "dense peak that the GPU's vendor publishes for the dtype"},
    {"steps_per_second", "1/s", Better::higher, Nature::speed, "training steps per second"},
    {"communication_fraction", "", Better::lower, Nature::measured,
     "mean over ranks of the step's fraction of exposed communication"},
    {"bubble_fraction", "", Better::lower, Nature::measured,
     "mean over ranks of the step's fraction waiting for a pipeline's neighbour"},
    {"hidden_communication_fraction", "", Better::neither, Nature::measured,
     "mean over ranks of communication on another thread"},
    {"other_fraction", "", Better::lower, Nature::measured,
     "largest fraction of the step outside its parts, over ranks"}};
const bool step_counters_known = harness::add_counters(step_counters);

struct Column {
  Part part{};
  std::string group = {};  // of communication
  auto operator<=>(const Column&) const = default;
  static auto members(auto& self) { return std::tie(self.part, self.group); }
  std::string text() const { return StepTimes::Row{part, group, 0}.text(); }
};

// Returns the columns in the order of a step. Parts that did not occur are removed later.
const std::vector<Column>& columns_in_order() {
  static const std::vector<Column> columns{{Part::data},
                                           {Part::graph},
                                           {Part::forward},
                                           {Part::recompute},
                                           {Part::backward_input},
                                           {Part::backward_weights},
                                           {Part::communication, "tp"},
                                           {Part::communication, "cp"},
                                           {Part::communication, "cp_a2a"},
                                           {Part::communication, "cp_p2p"},
                                           {Part::communication, "pp"},
                                           {Part::communication, "dp"},
                                           {Part::communication, "embedding"},
                                           {Part::bubble},
                                           {Part::optimizer},
                                           {Part::offload},
                                           {Part::other}};
  return columns;
}

struct RankTimes {
  std::map<Column, double> parts, hidden;
  std::map<int, double> waited;
  static auto members(auto& self) { return std::tie(self.parts, self.hidden, self.waited); }
};

struct Columns {
  std::vector<Column> parts, hidden;
};

Columns columns_of(const std::vector<RankTimes>& ranks) {
  Columns columns;
  std::set<Column> there, hidden;
  for (const RankTimes& rank : ranks) {
    for (const auto& [column, seconds] : rank.parts)
      if (seconds > 0) there.insert(column);
    for (const auto& [column, seconds] : rank.hidden) hidden.insert(column);
  }
  for (const Column& column : columns_in_order())
    if (there.erase(column) > 0 || column.part == Part::other) columns.parts.push_back(column);
  columns.parts.insert(columns.parts.end() - 1, there.begin(), there.end());
  columns.hidden.assign(hidden.begin(), hidden.end());
  return columns;
}

StepBreakdown breakdown_of(const Columns& columns, const std::vector<RankTimes>& ranks,
                           const machine::Group& group) {
  StepBreakdown result;
  for (const Column& column : columns.parts) result.parts.push_back(column.text());
  for (const Column& column : columns.hidden) result.hidden_parts.push_back(column.text());
  const auto row = [](const std::vector<Column>& of, const std::map<Column, double>& times) {
    std::vector<double> values;
    for (const Column& column : of) {
      const auto found = times.find(column);
      values.push_back(found == times.end() ? 0 : found->second);
    }
    return values;
  };
  for (const RankTimes& rank : ranks) {
    result.seconds.push_back(row(columns.parts, rank.parts));
    result.hidden_s.push_back(row(columns.hidden, rank.hidden));
    std::vector<double>& waited = result.waited_s.emplace_back(ranks.size());
    for (std::size_t peer = 0; peer < ranks.size(); ++peer)
      if (const auto found = rank.waited.find(group.members[peer]); found != rank.waited.end())
        waited[peer] = found->second;
  }
  return result;
}

// Returns the time that this rank waited for each rank. Includes the time that another thread
// waited for a rank while this thread waited for that thread.
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

// graph: what runs in it has no parts, so its communication and waiting are not known.
void count(harness::Description& description, const Columns& columns, bool graph) {
  const StepBreakdown& all = description.step_breakdown;
  const auto ranks = static_cast<double>(all.ranks());
  double communication = 0, bubble = 0, hidden = 0, other = 0;
  for (std::size_t rank = 0; rank < all.seconds.size(); ++rank) {
    double step = 0;
    for (const double seconds : all.seconds[rank]) step += seconds;
    if (step <= 0) continue;
    for (std::size_t i = 0; i < columns.parts.size(); ++i) {
      const double fraction = all.seconds[rank][i] / step;
      const Part part = columns.parts[i].part;
      if (part == Part::communication) communication += fraction / ranks;
      if (part == Part::bubble) bubble += fraction / ranks;
      if (part == Part::other) other = std::max(other, fraction);
    }
    for (const double seconds : all.hidden_s[rank]) hidden += seconds / step / ranks;
  }
  description.set("other_fraction", other);
  if (graph) return;
  description.set("communication_fraction", communication);
  description.set("bubble_fraction", bubble);
  if (!all.hidden_parts.empty()) description.set("hidden_communication_fraction", hidden);
}

std::vector<harness::Span> trace_of(const StepTimes& times) {
  std::vector<harness::Span> spans;
  const auto add = [&](const StepTimes::Lane& lane) {
    for (const StepTimes::Interval& interval : lane.intervals) {
      const std::string name =
          interval.peer >= 0 ? fmt::format("wait for rank {}", interval.peer)
          : interval.peer == StepTimes::other_thread
              ? fmt::format("{}: wait for the thread", lane.rows[interval.row].text())
              : lane.rows[interval.row].text();
      spans.push_back({0, lane.name, name, interval.start_s, interval.end_s});
    }
  };
  add(times.own);
  for (const StepTimes::Lane& lane : times.others) add(lane);
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
  // Only rank 0 knows the time.
  std::size_t nearest = 0;
  for (std::size_t i = 0; i < slowest.size(); ++i)
    if (std::abs(slowest[i] - seconds) < std::abs(slowest[nearest] - seconds)) nearest = i;
  return world.broadcast(group, 0, nearest);
}

void StepRecorder::describe(harness::Description& description, machine::World& world,
                            const machine::Group& group, const TrainingConfig& config) const {
  if (steps_.empty()) return;
  const Totals& step = steps_[typical(description.seconds, world, group)];
  RankTimes mine;
  for (const StepTimes::Row& row : step.rows) mine.parts[{row.part, row.group}] = row.seconds;
  for (const auto& [group_name, seconds] : step.hidden_s)
    mine.hidden[{Part::communication, group_name}] = seconds;
  mine.waited = step.waited_s;
  const std::vector<RankTimes> ranks = world.all_gather(group, mine);
  const Columns columns = columns_of(ranks);
  description.step_breakdown = breakdown_of(columns, ranks, group);
  description.trace = gather_spans(world, group, trace_of(clock_.times()));
  description.breakdown.clear();
  for (std::size_t i = 0; i < description.step_breakdown.parts.size(); ++i)
    description.breakdown.emplace_back(description.step_breakdown.parts[i],
                                       description.step_breakdown.seconds.front()[i]);
  count(description, columns, config.graph);
  if (config.degrees.pp > 1 && !config.graph)
    describe_pipeline(description, world, group, config, step.timeline);
}

}  // namespace suite
