#pragma once
// The means of rows and columns that Adafactor keeps of its matrices (zero/matrices/adafactor.h),
// as tensors of a checkpoint: NAME/of_rows, NAME/of_columns/means and the scalar NAME/of_all/mean.
// All ranks of dp have the same means; the first saves them. A rank of tp saves its part, and the
// first also what all have.

#include "suite/trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

namespace suite {

// Does not call the sink with other optimizers.
void add_means(Trainer& trainer, zero::PieceSink& sink);
void read_means(const zero::Checkpoint& checkpoint, Trainer& trainer);

}  // namespace suite
