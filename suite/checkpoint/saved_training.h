#pragma once
// A training with checkpoints: --save DIR, --load DIR, --save-interval, --train-iters and
// --async-save of the training step's units. It starts from the seed or continues a checkpoint, and
// writes a checkpoint after every save-interval steps and after the last one.
//
// Judged are finite losses, every checkpoint, and whatever after_step judges. After
// it is complete, each rank reads the pieces that it added. They must have the bits that the states
// had at the save, although the training may have continued.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/unit/sweep.h"
#include "harness/unit/unit.h"
#include "suite/trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

namespace suite {

struct SavedTraining {
  std::int64_t begin = 0;      // steps of the checkpoint that was loaded
  std::vector<double> losses;  // of the steps after them
  int saves = 0;
};

// For a checkpoint of one unit, gives the axes without a flag their defaults, so that the flags
// name one case. data-parallel-size is `ranks` over the other degrees, or 1.
void choose_one_training(const std::vector<std::string>& units, harness::PlanRequest& request);

// Throws FileError before any rank starts. Reads the pieces of a checkpoint only if this process is
// not a rank of a launcher.
void check_saved_training(const harness::Files& files, const TrainingConfig& config,
                          const std::function<Corpus()>& corpus);

// Trains a fresh trainer. Calls after_step before the first step and after each, with the number of
// steps. Collective over the group.
SavedTraining train_saved(harness::Judge& judge, Trainer& trainer, const harness::Context& context,
                          const zero::Texts& keys,
                          const std::function<void(std::int64_t)>& after_step);

}  // namespace suite
