#pragma once
// The scales of 8-bit AdamW's codes (zero/eight_bit/adamw_8bit.h) as tensors of a checkpoint:
// NAME/first_moment/scales and NAME/second_moment/scales, one number for each block of a
// parameter's part on a rank of tp. The codes are NAME/first_moment and NAME/second_moment, like
// other moments. So states are read at any degrees but tp, with the same bits.

#include "suite/trainer/trainer.h"
#include "zero/checkpoint/checkpoint.h"

namespace suite {

// Does not call the sink with other optimizers.
void add_scales(Trainer& trainer, zero::PieceSink& sink);
void read_scales(const zero::Checkpoint& checkpoint, Trainer& trainer);

}  // namespace suite
