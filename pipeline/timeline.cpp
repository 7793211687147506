#include "pipeline/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pipeline {

std::string executed(const StageTimeline& timeline) {
  StageSchedule actions;
  for (const Event& event : timeline) {
    if (event.doing == Doing::compute) actions.push_back(event.action);
  }
  return text(actions);
}

double busy_s(const StageTimeline& timeline) {
  double sum = 0;
  for (const Event& event : timeline) {
    if (event.doing == Doing::compute) sum += event.seconds();
  }
  return sum;
}

double span_s(const StageTimeline& timeline) {
  const auto computes = [](const Event& event) { return event.doing == Doing::compute; };
  const auto first = std::find_if(timeline.begin(), timeline.end(), computes);
  const auto last = std::find_if(timeline.rbegin(), timeline.rend(), computes);
  return first == timeline.end() ? 0 : last->end_s - first->start_s;
}

Bubble bubble(double step_s, double busy_s) {
  const double idle = step_s - busy_s;
  return {idle, step_s > 0 ? idle / step_s : 0, busy_s > 0 ? idle / busy_s : 0};
}

std::string text(const Bubble& bubble) {
  return fmt::format("idle {:.4g} s: {:.4g} of total, {:.4g} of ideal", bubble.idle_s,
                     bubble.of_total, bubble.of_ideal);
}

std::string draw(const std::vector<StageTimeline>& stages, int columns) {
  double begin = std::numeric_limits<double>::infinity(), end = -begin;
  for (const StageTimeline& timeline : stages) {
    for (const Event& event : timeline) {
      begin = std::min(begin, event.start_s);
      end = std::max(end, event.end_s);
    }
  }
  if (!(end > begin)) return "";
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround((time - begin) / (end - begin) * columns));
  };
  std::string out;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    std::string line(static_cast<std::size_t>(columns), '.');
    for (const Event& event : stages[stage]) {
      if (event.doing != Doing::compute) continue;
      const std::size_t from = column(event.start_s);
      const std::size_t width =
          std::min(column(event.end_s), line.size()) - std::min(from, line.size());
      std::string cell = text(event.action).substr(0, width);
      cell.resize(width, '=');
      line.replace(std::min(from, line.size()), width, cell);
    }
    out += fmt::format("stage {} |{}|\n", stage, line);
  }
  return out;
}

}  // namespace pipeline
