#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "pipeline/schedules/gpipe.h"
#include "pipeline/schedules/one_forward_one_backward.h"

namespace pipeline {
namespace {

// Insertions, deletions and replacements that lead from one word to the other.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] != to[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all = {
      {"gpipe", "Huang et al. 2019, arXiv:1811.06965", gpipe, gpipe_peak, gpipe_makespan},
      {"1f1b", "Narayanan et al. 2020, arXiv:2006.09503 (PipeDream-Flush)",
       one_forward_one_backward, one_forward_one_backward_peak, one_forward_one_backward_makespan},
  };
  return all;
}

const Schedule& find_schedule(std::string_view name) {
  const auto& all = schedules();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Schedule& s) { return s.name == name; });
  if (found != all.end()) return *found;
  const auto nearest =
      std::min_element(all.begin(), all.end(), [&](const Schedule& a, const Schedule& b) {
        return edit_distance(name, a.name) < edit_distance(name, b.name);
      });
  throw std::invalid_argument(
      fmt::format("no pipeline schedule '{}'; did you mean '{}'?", name, nearest->name));
}

StageSchedules all_stages(const Schedule& schedule, int stages, int micro_batches) {
  if (stages < 1 || micro_batches < 1) {
    throw std::invalid_argument(
        fmt::format("schedule {}: {} stages and {} micro-batches, both must be positive",
                    schedule.name, stages, micro_batches));
  }
  StageSchedules all;
  for (int stage = 0; stage < stages; ++stage)
    all.push_back(schedule.stage(stage, stages, micro_batches));
  return all;
}

}  // namespace pipeline
