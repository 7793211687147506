#include "layers/models/stack_block.h"

#include <fmt/format.h>

namespace layers {
namespace {

Stack stack_of(const GptConfig& config, int index) {
  return config.encoder_decoder() && index < config.encoder_layers() ? Stack::encoder
                                                                     : Stack::decoder;
}

// Returns the shape of one block of a stack. A decoder alone has the shape of the model.
GptConfig shape_of(GptConfig config, Stack stack, int index) {
  if (!config.has_experts(index)) config.moe.num_experts = 0;
  if (config.encoder_decoder() && stack == Stack::encoder)
    config.architecture = Architecture::encoder;
  return config;
}

}  // namespace

StackBlock::StackBlock(const Context& context, const GptConfig& config, int index,
                       const std::optional<MoeCommunicators>& experts)
    : context_(context),
      config_(config),
      index_(index),
      stack_(stack_of(config, index)),
      block_(context, fmt::format("blocks.{}", index), shape_of(config, stack_, index), experts) {
  if (config.encoder_decoder() && index + 1 == config.encoder_layers())
    end_.emplace(context, fmt::format("blocks.{}.end", index), config);
}

PackedRows StackBlock::packed(const Tensor& x) const {
  return PackedRows(config_, context_.tp.size(), x);
}

void StackBlock::forward(const Tensor& x, const Tensor& y, Saved& saved, Category kept,
                         const TokenBatch& batch) {
  if (!config_.encoder_decoder())
    return block_.forward(
        x, y, saved.block, kept,
        {.draw = batch.draw,
         .lengths = batch.lengths,
         .routing = batch.routing ? &(*batch.routing)[static_cast<std::size_t>(index_)] : nullptr});
  const PackedRows rows = packed(x);
  machine::Stream& stream = context_.stream();
  const bool encodes = stack_ == Stack::encoder;
  const Stack other = encodes ? Stack::decoder : Stack::encoder;
  for (const auto& [from, to] :
       {std::pair(rows.of(other, x), rows.of(other, y)), {rows.tables(x), rows.tables(y)}})
    stream.copy(to.data(), from.data(), to.bytes());
  BlockInputs inputs{
      batch.draw,
      encodes ? batch.lengths : nullptr,
      {rows.table(stack_, x), encodes ? batch.encoder_buckets : batch.decoder_buckets}};
  if (!encodes) {
    inputs.encoded = rows.of(Stack::encoder, x);
    inputs.encoded_lengths = batch.lengths;
  }
  const Tensor from = rows.of(stack_, x), to = rows.of(stack_, y);
  if (!end_) return block_.forward(from, to, saved.block, kept, inputs);
  saved.unnormed = context_.tensor(to.shape(), kept);
  block_.forward(from, saved.unnormed, saved.block, kept, inputs);
  end_->forward(saved.unnormed, to, saved.statistics, kept);
}

void StackBlock::backward_input(const Tensor& d_y, const Tensor& d_x, Saved& saved, Category kept,
                                double loss_scale) {
  if (!config_.encoder_decoder())
    return block_.backward_input(d_y, d_x, saved.block, kept, {}, loss_scale);
  const PackedRows rows = packed(d_x);
  machine::Stream& stream = context_.stream();
  const bool encodes = stack_ == Stack::encoder;
  const Stack other = encodes ? Stack::decoder : Stack::encoder;
  for (const auto& [from, to] :
       {std::pair(rows.of(other, d_y), rows.of(other, d_x)), {rows.tables(d_y), rows.tables(d_x)}})
    stream.copy(to.data(), from.data(), to.bytes());
  const BlockGradients also{rows.table(stack_, d_x),
                            encodes ? Tensor() : rows.of(Stack::encoder, d_x)};
  Tensor d_end = rows.of(stack_, d_y);
  if (end_) {
    saved.d_end = d_end;
    saved.d_unnormed = context_.tensor(d_end.shape(), kept);
    end_->backward_input(saved.unnormed, saved.statistics, d_end, saved.d_unnormed);
    d_end = saved.d_unnormed;
  }
  block_.backward_input(d_end, rows.of(stack_, d_x), saved.block, kept, also);
}

void StackBlock::backward_weights(Saved& saved) {
  block_.backward_weights(saved.block);
  if (end_) end_->backward_weights(saved.unnormed, saved.statistics, saved.d_end);
  saved = Saved();
}

Parameters StackBlock::parameters() {
  return end_ ? joined({block_.parameters(), end_->parameters()}) : block_.parameters();
}

}  // namespace layers
