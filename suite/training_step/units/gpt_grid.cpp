#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule.h"
#include "suite/training_step/units/gpt_step.h"

namespace suite {
namespace {

using harness::Profile;

// Has the claim of gpt_step on all process grids of eight ranks, and on a sample of those of
// sixteen. The model has a layer for every part of the longest pipeline and a head for every rank.
struct GptGrid : GptStep {
  static constexpr std::string_view name = "gpt_grid";
  static constexpr std::string_view about =
      "gpt_step on every grid of TP x PP x DP, with every pipeline schedule";

  static harness::Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum Profile;
    harness::Sweep<Case> sweep = step_sweep(request, {{"model", "tiny"}, {"uneven-tokens", "on"}});
    for (const int tp : {1, 2, 4, 8})
      for (const int pp : {1, 2, 4, 8})
        if (const int dp = 8 / (tp * pp); dp > 0)
          cut(sweep, {acceptance, paper}, pipeline::schedule_names(), tp, pp, dp,
              {vary("model-args", {"--num-layers 16 --num-attention-heads 8"}),
               vary("global-batch-size", {"16"})});
    cut_contexts(sweep);
    sample_sixteen(sweep);
    const Variations four_layers{vary("model-args", {"--num-layers 4"})};
    cut(sweep, {quick}, {"interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "dual_pipe"}, 2, 2, 1,
        four_layers);
    // Covers two chunks per stage in all three orders.
    cut(sweep, {smoke}, {"interleaved_1f1b", "zb_v", "dual_pipe"}, 1, 2, 1, four_layers);
    return sweep;
  }

  // Adds all grids of eight ranks with cp 2 or more, in every ZeRO stage and with three schedules.
  // The algorithm and the placement vary over them. FPDT is on each grid, with one stage.
  static void cut_contexts(harness::Sweep<Case>& sweep) {
    const std::vector<std::string> types{"p2p", "all_gather", "a2a", "a2a+p2p"},
        orders{"zigzag", "striped", "contiguous"};
    std::size_t at = 0;
    for (const int tp : {1, 2, 4})
      for (const int pp : {1, 2, 4})
        for (const int cp : {2, 4, 8}) {
          const int dp = 8 / (tp * pp * cp);
          if (dp == 0) continue;
          for (const int stage : {0, 1, 2, 3})
            for (const std::string schedule : {"1f1b", "interleaved_1f1b", "zb_h1"}) {
              if (pp == 1 && schedule != "1f1b") continue;
              sweep.slice(
                  {harness::Profile::paper}, "contexts",
                  grids({8}, {tp}, {pp}, {dp}, {cp}) +
                      over_cp(types[at % (cp > 2 ? 4 : 3)], orders[at / 4 % 3]) + with_layers(8) +
                      Variations{vary("schedule", {schedule}),
                                 vary("sequence-parallel", {tp > 1 ? "on" : "off"}),
                                 vary("zero-stage", {std::to_string(stage)}),
                                 vary("recompute-granularity", {at % 2 == 0 ? "none" : "full"}),
                                 vary("dtype", {"float", "bfloat16"})});
              ++at;
            }
          sweep.slice({harness::Profile::paper}, "chunks",
                      grids({8}, {tp}, {pp}, {dp}, {cp}) + in_chunks(at % 2 == 0 ? "on" : "off") +
                          with_layers(8) +
                          Variations{vary("schedule", {pp > 1 ? "zb_h1" : "1f1b"}),
                                     vary("sequence-parallel", {tp > 1 ? "on" : "off"}),
                                     vary("zero-stage", {std::to_string(at % 4)}),
                                     vary("recompute-granularity", {"none", "full"})});
        }
  }

  static Variations with_layers(int layers) {
    return {vary("model-args", {fmt::format("--num-layers {} --num-attention-heads 8 "
                                            "--hidden-dropout 0.1",
                                            layers)}),
            vary("global-batch-size", {"16"})};
  }

  // Adds a sample of the grids of sixteen ranks, with one value of everything else for each.
  static void sample_sixteen(harness::Sweep<Case>& sweep) {
    struct Sample {
      int tp, pp, dp, cp;
      const char *schedule, *type, *order;
      int zero_stage;
      const char* recompute;
    };
    for (const Sample& one :
         {Sample{2, 2, 2, 2, "1f1b", "p2p", "zigzag", 3, "none"},
          Sample{1, 2, 2, 4, "zb_h1", "a2a+p2p", "striped", 1, "full"},
          Sample{4, 2, 1, 2, "interleaved_1f1b", "all_gather", "zigzag", 2, "none"},
          Sample{2, 4, 1, 2, "zb_h1", "a2a", "contiguous", 2, "full"},
          Sample{1, 1, 4, 4, "1f1b", "a2a", "striped", 3, "selective"},
          Sample{2, 4, 2, 1, "dual_pipe", "p2p", "zigzag", 1, "none"},
          Sample{4, 1, 4, 1, "1f1b", "p2p", "zigzag", 3, "full"},
          Sample{1, 16, 1, 1, "zb_h2", "p2p", "zigzag", 0, "none"}})
      sweep.slice({harness::Profile::paper}, "sixteen ranks",
                  grids({16}, {one.tp}, {one.pp}, {one.dp}, {one.cp}) +
                      (one.cp > 1 ? over_cp(one.type, one.order) : Variations{}) + with_layers(16) +
                      Variations{vary("schedule", {one.schedule}),
                                 vary("sequence-parallel", {one.tp > 1 ? "on" : "off"}),
                                 vary("zero-stage", {std::to_string(one.zero_stage)}),
                                 vary("recompute-granularity", {one.recompute}),
                                 vary("dtype", {"float", "bfloat16"})});
  }

  // Adds one grid with all schedules. The way to hold activations, the ZeRO stage and the dtype
  // vary over grids and schedules: one combination each, and all combinations in `paper`.
  static void cut(harness::Sweep<Case>& sweep, const std::vector<Profile>& profiles,
                  const std::vector<std::string>& schedules, int tp, int pp, int dp,
                  const Variations& model) {
    const std::vector<std::string> names = pipeline::schedule_names();
    const std::vector<std::string> held{"none", "selective", "full"};
    const std::vector<std::string> dtypes{"float", "bfloat16"};
    for (const std::string& schedule : schedules) {
      if (pp == 1 && schedule != "1f1b") continue;
      // Uses sequence parallelism if there are several tp ranks.
      const Variations grid = grids({tp * pp * dp}, {tp}, {pp}, {dp}) + model +
                              Variations{vary("schedule", {schedule}),
                                         vary("sequence-parallel", {tp > 1 ? "on" : "off"})};
      const auto at = static_cast<std::size_t>(std::ranges::find(names, schedule) - names.begin() +
                                               tp / 2 + pp / 4);
      for (const Profile profile : profiles) {
        const bool all = profile == Profile::paper;
        const int small = static_cast<int>(at / 2 % 2);
        for (const int stage : pp == 1 || all                   ? std::vector{0, 1, 2, 3}
                               : profile == Profile::acceptance ? std::vector{small, 2 + small}
                                                                : std::vector{small})
          sweep.slice({profile}, "grids",
                      grid + Variations{vary("zero-stage", {std::to_string(stage)}),
                                        // "profile" is not here: its parts follow measured times,
                                        // so two runs may hold and send different bytes.
                                        vary("partition-method",
                                             {pp > 1 && stage == 0 ? "parameters" : "uniform"}),
                                        vary("recompute-granularity",
                                             all ? held : std::vector{held[at % 3]}),
                                        vary("dtype", all ? dtypes : std::vector{dtypes[at % 2]})});
      }
    }
  }
  using GptStep::GptStep;
};

const bool registered = harness::add<GptGrid>();

}  // namespace
}  // namespace suite
