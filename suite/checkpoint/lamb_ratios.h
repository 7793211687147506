#pragma once
// The numbers that 1-bit LAMB keeps of each parameter (zero/one_bit/one_bit_lamb.h) as a tensor of
// a checkpoint: NAME/fresh_variance/ratios has the mean of its ratios, its last factor and the
// constant of its momenta. They are equal on all ranks, so the first that holds the parameter saves
// them.

#include "suite/trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

namespace suite {

// Does not call the sink with other optimizers.
void add_ratios(Trainer& trainer, zero::PieceSink& sink);
void read_ratios(const zero::Checkpoint& checkpoint, Trainer& trainer);

}  // namespace suite
