#pragma once
// A block of a model, on the activations between blocks. Of an encoder-decoder these are
// packed_rows.h: a block of the encoder or the decoder transforms the rows of its stack and copies
// the others. The last block of the encoder ends with a norm. A block of the decoder also attends
// to the rows of the encoder.

#include <cstdint>
#include <optional>

#include "layers/context.h"
#include "layers/gpt_config.h"
#include "layers/models/packed_rows.h"
#include "layers/models/token_batch.h"
#include "layers/models/transformer_block.h"
#include "layers/norm.h"

namespace layers {

class StackBlock {
 public:
  // Kept from forward to backward_weights. backward_input adds d_end and d_unnormed.
  struct Saved {
    TransformerBlock::Saved block;
    Tensor unnormed;  // the encoder's last rows before their norm
    Norm::Statistics statistics;
    Tensor d_end, d_unnormed;  // d_end is the caller's
  };

  // index: of the block in the model, from 0.
  StackBlock(const Context& context, const GptConfig& config, int index,
             const std::optional<MoeCommunicators>& experts = {});

  // As TransformerBlock's.
  void forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
               const TokenBatch& batch);
  void backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept,
                      double loss_scale = 1);
  void backward_weights(Saved& saved);

  Parameters parameters();

 private:
  PackedRows packed(const Tensor& x) const;

  Context context_;
  GptConfig config_;
  int index_;
  Stack stack_;
  TransformerBlock block_;
  std::optional<Norm> end_;  // of the encoder
};

}  // namespace layers
