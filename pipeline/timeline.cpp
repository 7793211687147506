#include "pipeline/timeline.h"

#include <algorithm>

namespace pipeline {

std::string executed(const StageTimeline& timeline) {
  StageSchedule actions;
  for (const Event& event : timeline)
    if (event.doing == Doing::compute) actions.push_back(event.action);
  return text(actions);
}

double busy_s(const StageTimeline& timeline) {
  double sum = 0;
  for (const Event& event : timeline)
    if (event.doing == Doing::compute) sum += event.seconds();
  return sum;
}

double span_s(const StageTimeline& timeline) {
  const auto first = std::ranges::find(timeline, Doing::compute, &Event::doing);
  const auto last =
      std::ranges::find(timeline.rbegin(), timeline.rend(), Doing::compute, &Event::doing);
  return first == timeline.end() ? 0 : last->end_s - first->start_s;
}

Bubble bubble(double step_s, double busy_s) {
  const double idle = step_s - busy_s;
  return {idle, step_s > 0 ? idle / step_s : 0, busy_s > 0 ? idle / busy_s : 0};
}

}  // namespace pipeline
