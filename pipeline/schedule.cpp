#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "machine/device/names.h"
#include "pipeline/schedules/dual_pipe.h"
#include "pipeline/schedules/gpipe.h"
#include "pipeline/schedules/interleaved_one_forward_one_backward.h"
#include "pipeline/schedules/one_forward_one_backward.h"
#include "pipeline/schedules/zb_h1.h"
#include "pipeline/schedules/zb_h2.h"
#include "pipeline/schedules/zb_v.h"

namespace pipeline {
namespace {

Placement in_loops(const Size& size) { return looped(size.stages, size.chunks); }
Placement in_a_v(const Size& size) { return v_shaped(size.stages); }
Placement from_both_ends(const Size& size) { return bidirectional(size.stages); }

}  // namespace

const std::vector<Schedule>& schedules() {
  static const std::vector<Schedule> all = {
      {"gpipe", "Huang et al. 2019, arXiv:1811.06965", in_loops, gpipe, gpipe_peak, gpipe_span},
      {"1f1b", "Narayanan et al. 2020, arXiv:2006.09503 (PipeDream-Flush)", in_loops,
       one_forward_one_backward, one_forward_one_backward_peak, one_forward_one_backward_span},
      {.name = "interleaved_1f1b",
       .source = "Narayanan et al. 2021, arXiv:2104.04473",
       .placement = in_loops,
       .stage = interleaved_one_forward_one_backward,
       .peak = interleaved_one_forward_one_backward_peak,
       .span = interleaved_one_forward_one_backward_span,
       .chunks = 2,
       .any_chunks = true,
       .needs = interleaved_one_forward_one_backward_needs},
      {.name = "zb_h1",
       .source = "Qi et al. 2024, arXiv:2401.10241",
       .placement = in_loops,
       .stage = zb_h1,
       .peak = zb_h1_peak,
       .span = zb_h1_span,
       .parts_backward = true},
      {.name = "zb_h2",
       .source = "Qi et al. 2024, arXiv:2401.10241",
       .placement = in_loops,
       .stage = zb_h2,
       .peak = zb_h2_peak,
       .span = zb_h2_span,
       .parts_backward = true},
      {.name = "zb_v",
       .source = "Qi et al. 2024, arXiv:2405.15362",
       .placement = in_a_v,
       .stage = zb_v,
       .peak = zb_v_peak,
       .span = zb_v_span,
       .chunks = 2,
       .parts_backward = true},
      {.name = "dual_pipe",
       .source = "DeepSeek-AI 2024, arXiv:2412.19437",
       .placement = from_both_ends,
       .stage = dual_pipe,
       .peak = dual_pipe_peak,
       .span = dual_pipe_span,
       .chunks = 2,
       .parts_backward = true,
       .needs = dual_pipe_needs},
  };
  return all;
}

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
        "schedule {} with {} stages, {} micro-batches and {} chunks a stage: needs {}", name,
        size.stages, size.micro_batches, size.chunks, needed);
  };
  if (size.stages < 1 || size.micro_batches < 1 || size.chunks < 1)
    return refuse("positive numbers of all three");
  if (!any_chunks && size.chunks != chunks)
    return refuse(chunks == 1 ? "1 chunk" : fmt::format("{} chunks", chunks));
  if (needs != nullptr) {
    if (const std::string_view needed = needs(size); !needed.empty()) return refuse(needed);
  }
  return {};
}

StageSchedules::StageSchedules(std::vector<StageSchedule> stages, Placement placement)
    : placement(std::move(placement)), stages_(std::move(stages)) {
  if (this->placement.stages() != static_cast<int>(stages_.size())) {
    throw std::invalid_argument(fmt::format("a schedule of {} stages for a model placed on {}",
                                            stages_.size(), this->placement.stages()));
  }
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
