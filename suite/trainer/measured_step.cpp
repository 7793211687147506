#include "suite/trainer/measured_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/record/counters.h"
#include "pipeline/simulate.h"

namespace suite {
namespace {

using harness::Better, harness::Nature;

constexpr harness::Counter bubble_counters[] = {
    {"in_flight_peak", "", Better::neither, Nature::exact,
     "maximum number of live micro-batches on a stage"},
    {"bubble_measured", "", Better::lower, Nature::measured,
     "idle fraction of the stages, in the fastest or middle step of five"},
    {"bubble_expected", "", Better::neither, Nature::measured,
     "idle fraction by the paper's formula for equal stages"},
    {"bubble_ratio", "", Better::lower, Nature::measured,
     "`bubble_measured` over `bubble_expected`"}};
const bool bubble_counters_known = harness::add_counters(bubble_counters);

}  // namespace

using pipeline::Doing;
using pipeline::Kind;

MeasuredStep gathered_step(machine::World& world, const machine::Group& group,
                           const pipeline::Timeline& mine) {
  MeasuredStep step;
  const std::vector<double> origins = world.all_gather(group, mine.origin_s);
  step.peak_in_flight = std::ranges::max(world.all_gather(group, mine.peak_in_flight));
  step.stages = world.all_gather(group, mine.events);
  const bool one_clock = world.on_one_host(group);
  const double begin = *std::min_element(origins.begin(), origins.end());
  for (std::size_t i = 0; i < step.stages.size(); ++i) {
    for (pipeline::Event& event : step.stages[i]) {
      const double shift = one_clock ? origins[i] - begin : 0;
      event.start_s += shift;
      event.end_s += shift;
      step.makespan_s = std::max(step.makespan_s, event.end_s);
    }
    step.span_s = std::max(step.span_s, pipeline::span_s(step.stages[i]));
  }
  return step;
}

std::vector<MeasuredStep> measured_steps(machine::World& world, const machine::Group& group,
                                         int steps,
                                         const std::function<pipeline::Timeline()>& run) {
  std::vector<MeasuredStep> measured;
  for (int i = 0; i < steps; ++i) measured.push_back(gathered_step(world, group, run()));
  std::sort(measured.begin(), measured.end(), [](const MeasuredStep& a, const MeasuredStep& b) {
    return a.makespan_s < b.makespan_s;
  });
  return measured;
}

void describe(harness::Description& description, const MeasuredStep& step,
              const machine::Group& group) {
  for (std::size_t i = 0; i < step.stages.size(); ++i) {
    for (const pipeline::Event& event : step.stages[i]) {
      harness::Span span;
      span.rank = group.members[i];
      const bool computes = event.doing == Doing::compute;
      span.lane = computes ? "compute" : "wait";
      span.name = computes
                      ? text(event.action)
                      : fmt::format("{} {}", event.doing == Doing::receive ? "receive" : "outbox",
                                    text(event.action));
      span.start_s = event.start_s;
      span.end_s = event.end_s;
      description.timeline.push_back(std::move(span));
    }
  }
  // Describes rank 0's computing time by kind, and the rest of the step.
  const std::pair<Kind, std::string_view> kinds[] = {{Kind::forward, "forward"},
                                                     {Kind::backward, "backward"},
                                                     {Kind::backward_input, "backward, inputs"},
                                                     {Kind::backward_weights, "backward, weights"}};
  for (const auto& [kind, label] : kinds) {
    double seconds = 0;
    for (const pipeline::Event& event : step.stages[0])
      if (event.doing == Doing::compute && event.action.kind == kind) seconds += event.seconds();
    if (seconds > 0) description.breakdown.emplace_back(label, seconds);
  }
  description.breakdown.emplace_back("waiting", step.makespan_s - pipeline::busy_s(step.stages[0]));
  description.set("in_flight_peak", step.peak_in_flight);
}

void describe_bubble(harness::Description& description, const MeasuredStep& step,
                     const pipeline::Schedule& schedule, const pipeline::Size& size,
                     const pipeline::StageSchedules& actions, const pipeline::Costs& costs) {
  const double stages = static_cast<double>(step.stages.size());
  double busy = 0, ideal = 0;
  for (const pipeline::StageTimeline& timeline : step.stages) busy += pipeline::busy_s(timeline);
  for (const pipeline::Action& action : actions.of(0)) ideal += costs.of(action.kind);
  const pipeline::Formula formula = schedule.span(size, costs);
  double span = formula.seconds;
  if (!formula) {
    span = pipeline::simulate(actions, std::vector<pipeline::Costs>(actions.size(), costs)).span_s;
    description.note = fmt::format(
        "bubble_expected is simulated, because the paper's formula requires {}", formula.needs);
  }
  const double measured = pipeline::bubble(stages * step.span_s, busy).of_total;
  description.set("bubble_measured", measured);
  // Rounding may make a formula's sum negative.
  const double expected = std::max(0.0, pipeline::bubble(span, ideal).of_total);
  description.set("bubble_expected", expected);
  if (expected > 1e-9) description.set("bubble_ratio", measured / expected);
}

double executor_overhead(const MeasuredStep& step) {
  double worst = 0;
  for (const pipeline::StageTimeline& timeline : step.stages) {
    double named = 0;
    for (const pipeline::Event& event : timeline) named += event.seconds();
    const double all = timeline.back().end_s - timeline.front().start_s;
    worst = std::max(worst, (all - named) / all);
  }
  return worst;
}

}  // namespace suite
