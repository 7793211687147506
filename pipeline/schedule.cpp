#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "machine/device/names.h"
#include "pipeline/schedules/gpipe.h"
#include "pipeline/schedules/one_forward_one_backward.h"

namespace pipeline {

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
  std::vector<std::string> known;
  for (const Schedule& schedule : all) known.emplace_back(schedule.name);
  throw std::invalid_argument(machine::unknown("pipeline schedule", name, known));
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
