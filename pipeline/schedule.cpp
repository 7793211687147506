#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/names.h"

namespace pipeline {

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) names.emplace_back(schedule.name);
  return names;
}

const Schedule& find_schedule(std::string_view name) {
  const auto& all = schedules();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Schedule& s) { return s.name == name; });
  if (found != all.end()) return *found;
  throw std::invalid_argument(machine::unknown("pipeline schedule", name, schedule_names()));
}

std::string Schedule::why_not(const Size& size) const {
  const auto refuse = [&](std::string_view needed) {
    return fmt::format(
        "schedule {} with {} stages, {} micro-batches and {} chunks per stage requires {}", name,
        size.stages, size.micro_batches, size.chunks, needed);
  };
  if (size.stages < 1 || size.micro_batches < 1 || size.chunks < 1)
    return refuse("positive numbers");
  if (!any_chunks && size.chunks != chunks)
    return refuse(chunks == 1 ? "1 chunk" : fmt::format("{} chunks", chunks));
  if (needs != nullptr)
    if (const std::string_view needed = needs(size); !needed.empty()) return refuse(needed);
  return {};
}

StageSchedules::StageSchedules(std::vector<StageSchedule> stages, Placement placement)
    : placement(std::move(placement)), stages_(std::move(stages)) {
  if (this->placement.stages() != static_cast<int>(stages_.size()))
    throw std::invalid_argument(fmt::format("the schedule has {} stages, but the placement has {}",
                                            stages_.size(), this->placement.stages()));
}

StageSchedules::StageSchedules(std::vector<StageSchedule> stages) : stages_(std::move(stages)) {
  int chunks = 1;
  for (const StageSchedule& schedule : stages_)
    for (const Action& action : schedule) chunks = std::max(chunks, action.chunk + 1);
  placement = looped(static_cast<int>(stages_.size()), chunks);
}

StageSchedules all_stages(const Schedule& schedule, const Size& size) {
  if (const std::string reason = schedule.why_not(size); !reason.empty())
    throw std::invalid_argument(reason);
  std::vector<StageSchedule> all;
  for (int stage = 0; stage < size.stages; ++stage) all.push_back(schedule.stage(stage, size));
  return {std::move(all), schedule.placement(size)};
}

StageSchedules all_stages(const Schedule& schedule, int stages, int micro_batches) {
  return all_stages(schedule, {stages, micro_batches, schedule.chunks});
}

}  // namespace pipeline
