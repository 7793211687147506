#include <string_view>
#include <vector>

#include "suite/training_step/units/gpt_step.h"

namespace suite {
namespace {

// Has the claim and oracles of gpt_step, for Llama's shape (layers/gpt_config.h) on fewer grids.
struct LlamaStep : GptStep {
  static constexpr std::string_view name = "llama_step";
  static constexpr std::string_view about =
      "gpt_step in Llama's shape: RMSNorm, SwiGLU, rotary positions, grouped queries";

  static harness::Sweep<Case> sweep(const harness::PlanRequest& request) {
    using enum harness::Profile;
    const auto rows_cut = vary("sequence-parallel", {"on"});
    harness::Sweep<Case> sweep = step_sweep(request, {{"model", "llama_tiny"}});
    sweep
        .slice({acceptance, paper}, "grids",
               grids({1, 2, 4, 8}, {1, 2, 4}, {1, 2}, {1, 2}) +
                   Variations{vary("dtype", {"float", "bfloat16"}),
                              vary("sequence-parallel", {"off", "on"}),
                              vary("recompute-granularity", {"none", "selective", "full"}),
                              vary("use-flash-attn", {"off", "on"})})
        .slice({quick, smoke}, "tp and pp", grids({4}, {2}, {2}, {1}) + Variations{rows_cut})
        // Rotary positions by global index, and heads of keys that ranks of cp share.
        .slice({quick, smoke}, "contexts",
               grids({4}, {2}, {1}, {1}, {2}) + over_cp("p2p", "zigzag"))
        .slice({acceptance, paper}, "contexts",
               grids({2, 4, 8}, {1, 2}, {1}, {1, 2}, {2, 4}) +
                   Variations{vary("cp-comm-type", {"p2p", "all_gather", "a2a"}),
                              vary("cp-placement", {"contiguous", "striped", "zigzag"}),
                              vary("use-flash-attn", {"on"})})
        .slice({quick, smoke}, "edges",
               grids({3}, {1}, {1}, {3}) +
                   Variations{vary("dtype", {"bfloat16"}), vary("use-flash-attn", {"on"}),
                              vary("micro-batch-size", {"2"}), vary("global-batch-size", {"12"})});
    return sweep;
  }
  using GptStep::GptStep;
};

const bool registered = harness::add<LlamaStep>();

}  // namespace
}  // namespace suite
