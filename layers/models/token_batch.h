#pragma once
// The tokens of one micro-batch, as a stage reads them.

#include <cstdint>
#include <vector>

#include "layers/dropout.h"
#include "layers/experts/routing.h"

namespace layers {

// int32 [sequences, rows of a sequence on this rank], in memory that the device reads. Tokens are
// read on the first stage, targets on the last. A token with a negative target does not count.
struct TokenBatch {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* targets = nullptr;
  int sequences = 1;
  Draw draw{};  // its position in the training, for dropout
  // For an encoder: the type of each token, 0 or 1, read on the first stage; and the length of each
  // sequence without padding, read on all stages until backward (null: no padding).
  const std::int32_t* types = nullptr;
  const std::int32_t* lengths = nullptr;
  // For an encoder-decoder: the decoder's tokens, read on the first stage. Targets belong to the
  // decoder's tokens, lengths to the encoder's sequences. The buckets of both stacks' pairs
  // (relative_bias.h) are read on all stages.
  const std::int32_t* decoder_tokens = nullptr;
  const std::int32_t* encoder_buckets = nullptr;
  const std::int32_t* decoder_buckets = nullptr;
  // For a model with experts: a record for each of its layers (routing.h), or null.
  std::vector<RoutingRecord>* routing = nullptr;
};

}  // namespace layers
