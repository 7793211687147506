// The table of all schedules. To add a schedule, add its header and its row.

#include "pipeline/schedule.h"
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

}  // namespace pipeline
