#include "layers/models/gpt.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/world/step_clock.h"

namespace layers {

BlockRange StageIndex::blocks(const GptConfig& config) const {
  const int each = config.layers / count;
  return given_blocks.value_or(BlockRange{index * each, (index + 1) * each});
}

void validate_fp8(const GptConfig& config, const ActivationOptions& options, Dtype dtype,
                  const Fp8Options& fp8) {
  fp8.validate();
  if (!fp8.on()) return;
  const auto refuse = [&fp8](std::string_view needs, std::string_view got) {
    machine::reject("fp8-format {} requires {} (got {})", name(fp8.format), needs, got);
  };
  if (dtype == Dtype::float64) refuse("dtype float, bfloat16 or half", "double");
  if (config.encoder_decoder()) refuse("architecture decoder or encoder", "encoder-decoder");
  if (config.has_experts())
    refuse("a model without experts", fmt::format("num-experts {}", config.moe.num_experts));
  if (options.tp_comm.enabled) refuse("tp-comm-overlap off", "on");
  if (options.fused_epilogues) refuse("fused-epilogues off", "on");
  if (options.recompute_granularity == RecomputeGranularity::full)
    refuse(
        "recompute-granularity none or selective, because a second forward would choose scales and "
        "shift the history again",
        "full");
}

GptStage::GptStage(const GptConfig& config, machine::Device& device, collectives::Communicator& tp,
                   Dtype dtype, StageIndex stage, const ActivationOptions& options,
                   machine::Device* checkpoint_host, Parameter* shared_table,
                   const ContextParallel& cp, const std::optional<MoeCommunicators>& experts,
                   const Fp8Scheme& fp8)
    : config_(config),
      options_(options),
      context_{device,
               tp,
               dtype,
               options.sequence_parallel,
               options.recompute_granularity == RecomputeGranularity::selective,
               options.blockwise(config),
               options.fused_epilogues,
               cp,
               options.tp_comm,
               fp8},
      checkpoints_(context_, options, checkpoint_host),
      stage_(stage),
      embedding_dropout_{context_, "embedding.dropout", config.hidden_dropout},
      decoder_dropout_{context_, "embedding.decoder.dropout", config.hidden_dropout} {
  config.validate(tp.size(), stage.given_blocks ? 1 : stage.count);
  const BlockRange blocks = stage.blocks(config);
  options.validate(config, tp.size(), blocks.size());
  validate_fp8(config, options, dtype, fp8.options);
  SHARDMARK_CHECK(stage.index, >=, 0);
  SHARDMARK_CHECK(stage.index, <, stage.count);
  SHARDMARK_CHECK(blocks.size(), >, 0);
  const bool tied = !config.untie_embeddings_and_output_weights;
  if (stage.first() || (stage.last() && tied && !shared_table))
    table_ =
        declare_token_table(context_, config.vocabulary, config.hidden, tied && stage.count > 1);
  if (stage.last() && !tied)
    output_weight_ = declare_output_weight(context_, config.vocabulary, config.hidden);
  if (stage.first()) {
    embedding_.emplace(context_, *table_, config);
    if (config.encoder_decoder())
      for (const auto& [bias, stack] :
           {std::pair(&encoder_bias_, "encoder"), {&decoder_bias_, "decoder"}})
        *bias = declare(context_, fmt::format("embedding.{}_bias.weight", stack),
                        {config.heads, relative_buckets_count}, {.tp = Spread::sharded, .dim = 0});
  }
  for (int i = blocks.begin; i < blocks.end; ++i) {
    blocks_.push_back(std::make_unique<StackBlock>(context_, config, i, experts));
    for (Parameter* parameter : blocks_.back()->parameters()) parameter->layer = 1 + i;
  }
  groups_ = layer_groups(options, blocks_.size());
  if (!stage.last()) return;
  has_own_table_ = !tied || (!embedding_ && !shared_table);
  Parameter& table = !tied ? *output_weight_ : shared_table ? *shared_table : *table_;
  head_.emplace(context_, table, config);
  for (Parameter* parameter : head_->parameters()) parameter->layer = 1 + config.layers;
  if (tied) table.layer = 0;  // layer of the embedding
}

Shape GptStage::boundary(int sequences) const {
  const std::int64_t rows = context_.cp.rows(config_.sequence);
  options_.validate_rows(static_cast<int>(rows), context_.tp.size(), sequences);
  const std::int64_t own = context_.own_rows(sequences * rows);
  return {config_.encoder_decoder() ? PackedRows(config_, context_.tp.size(), own).rows() : own,
          config_.hidden};
}

PackedRows GptStage::packed(const Tensor& x) const {
  return PackedRows(config_, context_.tp.size(), x);
}

Tensor GptStage::rows_of_head(const Tensor& x) const {
  return config_.encoder_decoder() ? packed(x).of(Stack::decoder, x) : x;
}

Parameters GptStage::embedding_parameters() {
  Parameters all = embedding_->parameters();
  if (encoder_bias_) all = joined({all, {&*encoder_bias_, &*decoder_bias_}});
  return all;
}

Parameters GptStage::parameters() {
  Parameters all;
  for (const Parameters& part : parts()) all.insert(all.end(), part.begin(), part.end());
  if (head_ && !has_own_table_) all.pop_back();
  return all;
}

std::vector<Parameters> GptStage::parts() {
  std::vector<Parameters> all;
  if (embedding_) all.push_back(embedding_parameters());
  for (const auto& block : blocks_) all.push_back(block->parameters());
  if (head_) all.push_back(head_->parameters());
  return all;
}

void GptStage::initialize(const Initializer& initializer) {
  for (const Parameters& part : parts()) initializer.fill(context_, part);
}

void GptStage::zero_gradients() {
  for (Parameter* parameter : parameters()) zero_gradient(context_, *parameter);
}

GptStage::Saved& GptStage::saved(int micro_batch) {
  const auto found = saved_.find(micro_batch);
  if (found == saved_.end())
    throw std::logic_error(
        fmt::format("GptStage: backward of micro-batch {} without its forward", micro_batch));
  return found->second;
}

void GptStage::forward(int micro_batch, const TokenBatch& batch, const Tensor& in,
                       const Tensor& out) {
  const Shape shape = boundary(batch.sequences);
  const auto [place, fresh] = saved_.try_emplace(micro_batch);
  if (!fresh)
    throw std::logic_error(
        fmt::format("GptStage: micro-batch {} is in flight already", micro_batch));
  Saved& saved = place->second;
  saved.batch = batch;
  saved.blocks.resize(blocks_.size());

  Tensor x = in;
  if (embedding_) {
    x = context_.tensor(shape, category_of_input(0));
    use(embedding_parameters(), [&] { embed(batch, x); });
  }
  SHARDMARK_CHECK(x.shape().text(), ==, shape.text());
  const auto apart = std::ranges::count_if(
      groups_, [&](const LayerGroup& group) { return group.recomputed && kept_apart(group); });
  auto room = checkpoints_.make_room(static_cast<std::size_t>(apart), x.size());
  for (const LayerGroup& group : groups_) {
    saved.inputs.push_back(!group.recomputed   ? Tensor()
                           : kept_apart(group) ? checkpoints_.keep(x, room)
                                               : x);
    for (std::size_t i = group.begin; i < group.end; ++i) {
      const bool leaves_stage = i + 1 == blocks_.size() && !head_;
      const Tensor y = leaves_stage ? out : context_.tensor(shape, category_of_input(i + 1));
      StackBlock::Saved dropped;
      use(blocks_[i]->parameters(), [&] {
        blocks_[i]->forward(x, y, group.recomputed ? dropped : saved.blocks[i],
                            group.recomputed ? Category::buffers : Category::activations, batch);
      });
      x = y;
    }
  }
  if (head_)
    use(head_->parameters(),
        [&] { head_->forward(rows_of_head(x), batch.targets, out, saved.head); });
}

void GptStage::embed(const TokenBatch& batch, const Tensor& x) {
  if (!config_.encoder_decoder()) {
    embedding_->forward(batch.tokens, x, batch.types);
    return embedding_dropout_.apply(batch.draw, x, x);
  }
  const PackedRows rows = packed(x);
  const Tensor encoder = rows.of(Stack::encoder, x), decoder = rows.of(Stack::decoder, x);
  embedding_->forward(batch.tokens, encoder);
  embedding_dropout_.apply(batch.draw, encoder, encoder);
  embedding_->forward(batch.decoder_tokens, decoder);
  decoder_dropout_.apply(batch.draw, decoder, decoder);
  context_.kernels().fill(rows.tables(x), 0);
  for (const auto& [bias, stack] :
       {std::pair(&encoder_bias_, Stack::encoder), {&decoder_bias_, Stack::decoder}})
    context_.stream().copy(rows.table(stack, x).data(), (*bias)->value.data(),
                           (*bias)->value.bytes());
}

// Returns the category of the input of block i (after the last block, of the head): activations,
// unless it is freed and recomputed.
Category GptStage::category_of_input(std::size_t block) const {
  for (const LayerGroup& group : groups_) {
    const bool dropped = group.recomputed && group.begin <= block && block < group.end &&
                         (block > group.begin || kept_apart(group));
    if (dropped) return Category::buffers;
  }
  return Category::activations;
}

// Returns whether the input of the group is stored as a copy. A tensor that the caller keeps is not
// copied.
bool GptStage::kept_apart(const LayerGroup& group) const {
  return checkpoints_.apart() && (group.begin > 0 || embedding_);
}

void GptStage::recompute(Saved& saved, std::size_t group, Category kept) {
  const machine::During again(machine::Part::recompute);
  const LayerGroup& layers = groups_[group];
  const Shape shape = boundary(saved.batch.sequences);
  Tensor x = std::move(saved.inputs[group]);
  if (kept_apart(layers)) x = checkpoints_.restore(std::move(x), shape, kept);
  for (std::size_t i = layers.begin; i < layers.end; ++i) {
    const bool leaves_group = i + 1 == layers.end;
    const Tensor y = context_.tensor(shape, leaves_group ? Category::buffers : kept);
    use(blocks_[i]->parameters(),
        [&] { blocks_[i]->forward(x, y, saved.blocks[i], kept, saved.batch); });
    x = y;
  }
}

// A gradient that the head shares with the embedding is not ready, because the embedding adds to it
// later.
void GptStage::head_weights(Saved& saved) {
  const machine::During weights(machine::Part::backward_weights);
  Parameters parameters = head_->parameters();
  observer_.before_gradients(parameters);
  head_->backward_weights(saved.head);
  if (!has_own_table_) parameters.pop_back();
  observer_.gradients_ready(parameters);
}

void GptStage::block_weights(Saved& saved, std::size_t block, bool begun) {
  const machine::During weights(machine::Part::backward_weights);
  if (!begun) observer_.before_gradients(blocks_[block]->parameters());
  blocks_[block]->backward_weights(saved.blocks[block]);
  observer_.gradients_ready(blocks_[block]->parameters());
}

void GptStage::embedding_weights(Saved& saved) {
  const machine::During weights(machine::Part::backward_weights);
  const Tensor& d_x = saved.d_embedding;
  const TokenBatch& batch = saved.batch;
  observer_.before_gradients(embedding_parameters());
  // Dropout is in place, because no later code reads the gradient.
  if (config_.encoder_decoder()) {
    const PackedRows rows = packed(d_x);
    const Tensor encoder = rows.of(Stack::encoder, d_x), decoder = rows.of(Stack::decoder, d_x);
    embedding_dropout_.apply(batch.draw, encoder, encoder);
    embedding_->backward_weights(batch.tokens, encoder);
    decoder_dropout_.apply(batch.draw, decoder, decoder);
    embedding_->backward_weights(batch.decoder_tokens, decoder);
    for (const auto& [bias, stack] :
         {std::pair(&encoder_bias_, Stack::encoder), {&decoder_bias_, Stack::decoder}})
      if ((*bias)->gradient)  // not frozen
        context_.kernels().accumulate(rows.table(stack, d_x), (*bias)->gradient);
  } else {
    embedding_dropout_.apply(batch.draw, d_x, d_x);
    embedding_->backward_weights(batch.tokens, d_x, batch.types);
  }
  saved.d_embedding = Tensor();
  observer_.gradients_ready(embedding_parameters());
}

void GptStage::run_backward(Saved& saved, const Tensor& d_out, const Tensor& d_in, Halves halves) {
  const bool both = halves == Halves::both;
  const Category kept = both ? Category::buffers : Category::activations;
  const Shape shape = boundary(saved.batch.sequences);
  Tensor d_y = d_out;
  if (head_) {
    d_y = context_.tensor(shape, kept);
    if (config_.encoder_decoder()) context_.kernels().fill(d_y, 0);
    use(head_->parameters(),
        [&] { head_->backward_input(loss_scale_, rows_of_head(d_y), saved.head, kept); });
    if (both) head_weights(saved);
  }
  SHARDMARK_CHECK(d_y.shape().text(), ==, shape.text());
  for (std::size_t group = groups_.size(); group-- > 0;) {
    if (groups_[group].recomputed) recompute(saved, group, kept);
    for (std::size_t i = groups_[group].end; i-- > groups_[group].begin;) {
      const bool leaves_stage = i == 0 && !embedding_;
      const Tensor d_x = leaves_stage ? d_in : context_.tensor(shape, kept);
      const bool joined = context_.joins_halves(kept);
      if (joined) observer_.before_gradients(blocks_[i]->parameters());
      use(blocks_[i]->parameters(),
          [&] { blocks_[i]->backward_input(d_y, d_x, saved.blocks[i], kept, loss_scale_); });
      d_y = d_x;
      if (both) block_weights(saved, i, joined);
    }
  }
  if (embedding_) {
    saved.d_embedding = d_y;
    if (both) embedding_weights(saved);
  }
  saved.input_half_done = true;
}

void GptStage::backward(int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  run_backward(saved(micro_batch), d_out, d_in, Halves::both);
  saved_.erase(micro_batch);
}

void GptStage::backward_input(int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  Saved& kept = saved(micro_batch);
  SHARDMARK_CHECK(kept.input_half_done, ==, false);
  run_backward(kept, d_out, d_in, Halves::input);
}

void GptStage::backward_weights(int micro_batch) {
  Saved& kept = saved(micro_batch);
  SHARDMARK_CHECK(kept.input_half_done, ==, true);
  if (head_) head_weights(kept);
  for (std::size_t i = blocks_.size(); i-- > 0;) block_weights(kept, i);
  if (embedding_) embedding_weights(kept);
  saved_.erase(micro_batch);
}

}  // namespace layers
