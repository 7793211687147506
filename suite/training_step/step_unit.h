#pragma once
// The shared part of the training step's units: a trainer that has taken two steps, the timed step,
// the oracles of memory, volume and schedule, and the record. A unit adds its cases and its oracle
// of numerics. Without a reference in double (--reference stored or none), judge_without_double is
// this oracle for every unit.
//
//   struct GptStep : StepUnit {
//     static constexpr std::string_view name = …, about = …;
//     static harness::Sweep<Case> sweep(const harness::PlanRequest&);
//     GptStep(const Case& c, harness::Context& context) : StepUnit(c, context) { warm_up(); }
//     void judge(harness::Judge& judge) { judge_step(judge); … }
//   };

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/unit/unit.h"
#include "suite/checkpoint/saved_training.h"
#include "suite/trainer/step_recorder.h"
#include "suite/trainer/trainer.h"
#include "suite/training_step/curve_keys.h"
#include "suite/training_step/loss_curve.h"
#include "suite/training_step/step_oracles.h"
#include "suite/training_step/step_sweep.h"

namespace suite {

class StepUnit {
 public:
  static constexpr harness::Oracle oracles[] = {harness::Oracle::numerics, harness::Oracle::volume,
                                                harness::Oracle::memory, harness::Oracle::schedule,
                                                harness::Oracle::determinism};
  using Case = TrainingCase;

  static std::string why_not(const Case& c, const harness::Context& context);
  static void check_files(const Case& c, const harness::Files& files);
  void prepare() {}
  void run();
  harness::Cost cost() const;

 protected:
  StepUnit(const Case& c, harness::Context& context);
  // Takes a step, then steps until one is not skipped, and calls `begin` before each of the latter.
  // Afterwards collectives hold their scratch, as in every later step.
  void warm_up(const std::function<void()>& begin = [] {});
  std::unique_ptr<Trainer> make_trainer() const;
  // Judges the timed trainer and then frees it.
  void judge_step(harness::Judge& judge);
  // Step 1 of this trainer and of the timed one must have the same bits.
  void judge_repeated(harness::Judge& judge, Trainer& trainer) const;
  Against against() const { return parse_against(context_.reference.kind); }
  // Trains a fresh trainer: as many steps as the stored curve has, else reference_steps. Judges its
  // losses (loss_curve.h) and the bits of its replicas after every step. Needs no memory but the
  // trainer's.
  LossCurve judge_without_double(harness::Judge& judge);
  bool saves_weights() const;  // whether --save is a file of weights
  // With a checkpoint (--save or --load with a folder), trains a fresh trainer or continues the
  // checkpoint, and judges the training (saved_training.h). exact, bounds: losses of the first
  // steps in double, and bounds of their errors; may be empty. Returns whether it trained.
  bool judge_saved(harness::Judge& judge, const std::vector<double>& exact = {},
                   const std::vector<double>& bounds = {});
  const std::optional<SavedTraining>& saved() const { return saved_; }
  // Writes --save-reference on rank 0, if it is given and all losses are finite.
  void save_reference(const std::vector<double>& losses, const std::vector<int>& skipped) const;
  void describe_step(harness::Description& description) const;
  void describe_reference(harness::Description& description) const;  // sets the note
  void describe_saved(harness::Description& description) const;      // sets losses and note

  harness::Context& context_;
  const int ranks_;
  TrainingConfig config_;
  Corpus corpus_;

 private:
  CategoryPeaks peaks_;       // peaks of a step; empty if all steps were skipped
  RoutedRows rows_;           // of its experts
  std::int64_t updates_ = 0;  // before it
  StepRecorder recorder_;
  std::unique_ptr<Trainer> trainer_;
  std::uint64_t first_step_hash_ = 0;
  pipeline::Timeline last_timeline_;
  std::vector<std::string> by_library_;        // groups of this rank
  std::map<std::string, std::uint64_t> sent_;  // bytes of this rank in a step, by group
  std::optional<SavedTraining> saved_;
};

}  // namespace suite
