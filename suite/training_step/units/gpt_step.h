#pragma once
// Claim: a GPT step over TP x PP x DP equals the step of one device. After ten steps the loss and
// every parameter are within the bound of rounding (reference.h). Replicas have the same bits after
// every step. Bytes sent and held are the sums of the papers' formulas. The pipeline executes its
// schedule (Shoeybi et al. 2019; Narayanan et al. 2021; Rajbhandari et al. 2020).

#include <string_view>
#include <vector>

#include "suite/training_step/reference.h"
#include "suite/training_step/step_unit.h"

namespace suite {

struct GptStep : StepUnit {
  static constexpr std::string_view name = "gpt_step";
  static constexpr std::string_view about =
      "forward, backward, gradient reduction and AdamW of a GPT over TP x PP x DP";
  static constexpr harness::Counter counters[] = {
      {"loss_error", "", harness::Better::lower, harness::Nature::exact,
       "largest relative error of the ten losses, compared with double"},
      {"skipped_steps", "", harness::Better::neither, harness::Nature::exact,
       "steps of the ten whose float16 gradients overflowed"}};

  static harness::Sweep<Case> sweep(const harness::PlanRequest& request);

  GptStep(const Case& c, harness::Context& context) : StepUnit(c, context) { warm_up(); }

  void judge(harness::Judge& judge);
  void describe(harness::Description& description);

 private:
  void judge_compressed(harness::Judge& judge);
  // Takes ten steps from the reference's seed.
  void judge_training(harness::Judge& judge);
  int trainer_tp_rank() const;
  // Rank 0 computes the reference once; the other ranks wait for it.

  std::vector<double> losses_, exact_losses_, loss_bounds_;
  SkippedSteps skipped_{};  // whether each judged step was skipped
  std::vector<int> skipped_steps_;
  double loss_error_ = 0;  // the largest relative error of a step's loss, compared with double
};

}  // namespace suite
