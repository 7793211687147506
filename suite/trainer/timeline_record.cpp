#include "suite/trainer/timeline_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "harness/record/counters.h"
#include "machine/world/grid.h"
#include "pipeline/simulate.h"
#include "suite/trainer/measured_step.h"

namespace suite {

using pipeline::Costs;

std::vector<harness::Span> gather_timeline(machine::World& world, const machine::Group& group,
                                           const pipeline::Timeline& timeline) {
  std::vector<harness::Span> mine;
  for (const pipeline::Event& event : timeline.events)
    mine.push_back({0, event.doing == pipeline::Doing::compute ? "compute" : "wait",
                    pipeline::text(event.action), timeline.origin_s + event.start_s,
                    timeline.origin_s + event.end_s});
  return gather_spans(world, group, mine);
}

std::vector<harness::Span> gather_spans(machine::World& world, const machine::Group& group,
                                        const std::vector<harness::Span>& mine) {
  std::vector<harness::Span> spans;
  int rank = 0;
  for (const std::vector<harness::Span>& theirs : world.all_gather(group, mine)) {
    for (const harness::Span& span : theirs) spans.push_back(span), spans.back().rank = rank;
    ++rank;
  }
  if (spans.empty()) return spans;
  const double first = std::ranges::min(spans, {}, &harness::Span::start_s).start_s;
  for (harness::Span& span : spans) {
    span.start_s -= first;
    span.end_s -= first;
  }
  return spans;
}

namespace {

using harness::Better, harness::Nature;

constexpr harness::Counter simulated_counters[] = {
    {"bubble_simulated", "", Better::neither, Nature::measured,
     "idle fraction of a step simulated with the measured times of the stages"}};
const bool simulated_counters_known = harness::add_counters(simulated_counters);

// Returns the mean times of a stage's passes. A schedule has whole backwards or their halves.
// dual_pipe has both, and the halves are used.
Costs costs_of(const pipeline::StageTimeline& stage) {
  using enum pipeline::Kind;
  std::map<pipeline::Kind, std::pair<double, int>> passes;
  for (const pipeline::Event& event : stage) {
    if (event.doing != pipeline::Doing::compute) continue;
    auto& [seconds, count] = passes[event.action.kind];
    seconds += event.seconds();
    ++count;
  }
  const auto mean = [&](pipeline::Kind kind) {
    const auto& [seconds, count] = passes[kind];
    return count > 0 ? seconds / count : 0;
  };
  const bool halves = passes.contains(backward_input);
  return {.forward = mean(forward),
          .backward_input = mean(halves ? backward_input : backward),
          .backward_weights = mean(backward_weights)};
}

double mean_of(const std::vector<Costs>& stages, double Costs::*cost) {
  double sum = 0;
  for (const Costs& stage : stages) sum += stage.*cost;
  return sum / static_cast<double>(stages.size());
}

}  // namespace

void describe_pipeline(harness::Description& description, machine::World& world,
                       const machine::Group& group, const TrainingConfig& config,
                       const pipeline::Timeline& timeline) {
  const machine::Grid grid(config.degrees, group);
  const MeasuredStep step = gathered_step(world, grid.group(machine::Axis::pp), timeline);
  const pipeline::StageSchedules schedules = suite::schedules(config);
  std::vector<Costs> costs;
  for (const pipeline::StageTimeline& stage : step.stages) costs.push_back(costs_of(stage));
  const Costs equal{.forward = mean_of(costs, &Costs::forward),
                    .backward_input = mean_of(costs, &Costs::backward_input),
                    .backward_weights = mean_of(costs, &Costs::backward_weights)};
  describe_bubble(description, step, pipeline::find_schedule(config.pipeline.schedule),
                  pipeline_size(config), schedules, equal);
  const pipeline::Simulation own = pipeline::simulate(schedules, costs);
  description.set("bubble_simulated",
                  pipeline::bubble(static_cast<double>(costs.size()) * own.span_s,
                                   std::accumulate(own.busy_s.begin(), own.busy_s.end(), 0.0))
                      .of_total);
  if (config.pipeline.partition_method != "uniform")
    description.note +=
        fmt::format("{}layers of the pipeline's parts: {}", description.note.empty() ? "" : "; ",
                    fmt::join(layers_of_parts(config), ", "));
}

}  // namespace suite
