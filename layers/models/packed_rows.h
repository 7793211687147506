#pragma once
// The activations of an encoder-decoder between its blocks, one tensor [rows, hidden]: this rank's
// own rows of the encoder, then those of the decoder, then the tables of the relative bias of both
// (relative_bias.h), padded to a whole row. So a pipeline needs one message between stages, and the
// gradients of what all blocks of a stack share arrive at the first stage as sums.

#include <cstdint>

#include "layers/context.h"
#include "layers/gpt_config.h"

namespace layers {

enum class Stack : unsigned char { encoder, decoder };

class PackedRows {
 public:
  // own: rows of one stack on this rank.
  PackedRows(const GptConfig& config, int tp, std::int64_t own)
      : own_(own), hidden_(config.hidden), heads_(config.heads / tp) {}
  PackedRows(const GptConfig& config, int tp, const Tensor& packed) : PackedRows(config, tp, 0) {
    own_ = (packed.rows() - rows()) / 2;
  }

  std::int64_t rows() const { return 2 * own_ + (2 * table_size() + hidden_ - 1) / hidden_; }

  Tensor of(Stack stack, const Tensor& x) const {
    return x.row_range(stack == Stack::encoder ? 0 : own_, own_);
  }
  // Returns a stack's table [heads/tp, buckets].
  Tensor table(Stack stack, const Tensor& x) const {
    return x.slice(2 * own_ * hidden_ + (stack == Stack::encoder ? 0 : table_size()),
                   {heads_, relative_buckets_count});
  }
  // Returns the tables and their padding.
  Tensor tables(const Tensor& x) const { return x.row_range(2 * own_, rows() - 2 * own_); }

 private:
  std::int64_t table_size() const { return heads_ * relative_buckets_count; }

  std::int64_t own_, hidden_, heads_;
};

}  // namespace layers
