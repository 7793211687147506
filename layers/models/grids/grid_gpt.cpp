#include "layers/models/grids/grid_gpt.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/world/step_clock.h"

namespace layers {
namespace {

Parameters plain(const GridParameters& parameters) {
  return {parameters.begin(), parameters.end()};
}

std::int64_t tokens_of(const GptConfig& config, int sequences) {
  return std::int64_t{sequences} * config.sequence;
}

// Fills a block as Initializer::fill fills a shard. A transposed one is drawn as it lies in the
// global parameter.
void fill(const GridContext& context, const Initializer& initializer, GridParameter& parameter) {
  if (!parameter.value)
    parameter.value = context.tensor(
        Parameter::local_shape(parameter.name, parameter.global_shape, parameter.placement, 1),
        Category::parameters);
  const Tensor& value = parameter.value;
  const auto& placed = *parameter.placement.block;
  const auto draw = [&](const Tensor& into) {
    context.kernels().fill_normal(into, random_key(initializer.seed, parameter.name),
                                  parameter.region(0), parameter.role == Role::gain ? 1 : 0,
                                  initializer.stddev(parameter.role));
  };
  if (!placed.transposed) return draw(value);
  const Tensor drawn = context.tensor({placed.rows, placed.cols}, Category::buffers);
  draw(drawn);
  const std::size_t width = size_of(value.dtype());
  for (std::int64_t row = 0; row < value.rows(); ++row)
    context.stream().copy_rows(value.row_range(row, 1).data(), width, drawn.slice(row, {1}).data(),
                               width * static_cast<std::size_t>(placed.cols), width, value.cols());
  context.stream().synchronize();  // before the memory of `drawn` is freed
}

}  // namespace

std::string why_no_grid_gpt(const GptConfig& config, const TensorGrid& grid, int sequences) {
  const auto requires_ = [&](std::string_view needs, std::string_view got) {
    return fmt::format("tensor-parallel-mode {} requires {} (got {})", name(grid.mode), needs, got);
  };
  if (config.architecture != Architecture::decoder)
    return requires_("architecture decoder", name(config.architecture));
  if (config.has_experts())
    return requires_("a model without experts",
                     fmt::format("num-experts {}", config.moe.num_experts));
  if (config.normalization != Normalization::layer_norm)
    return requires_("normalization LayerNorm", name(config.normalization));
  if (config.swiglu) return requires_("GELU", "swiglu");
  if (!config.learned_positions())
    return requires_("position-embedding-type learned_absolute",
                     name(config.position_embedding_type));
  if (config.query_groups() != config.heads)
    return requires_("as many query groups as heads",
                     fmt::format("num-query-groups {}", config.num_query_groups));
  if (config.disable_bias_linear) return requires_("biases", "disable-bias-linear");
  if (config.sparse.on())
    return requires_("sparse_attention.mode none", name(config.sparse.pattern.mode));
  for (const auto& [key, probability] : {std::pair("hidden-dropout", config.hidden_dropout),
                                         {"attention-dropout", config.attention_dropout}})
    if (probability > 0)
      return requires_(fmt::format("{} 0", key), fmt::format("{:g}", probability));
  const std::int64_t n = tokens_of(config, sequences), h = config.hidden;
  const auto in_grid = [&](PairPlace place, const GridSizes& sizes, std::string_view in,
                           std::string_view out) {
    return why_not_divided(grid, place, sizes, {"micro-batch-size x seq-length", in, out});
  };
  for (const std::string& why :
       {in_grid(PairPlace::first, {n, h, config.ffn()}, "hidden-size", "ffn-hidden-size"),
        in_grid(PairPlace::second, {n, config.vocabulary, h}, "vocab-size", "hidden-size"),
        in_grid(PairPlace::second, {n, config.sequence, h}, "seq-length", "hidden-size"),
        why_not_divided(grid, {sequences, config.sequence, h, config.heads})})
    if (!why.empty()) return fmt::format("tensor-parallel-mode {}: {}", name(grid.mode), why);
  return {};
}

GridGptStage::GridGptStage(const GptConfig& config, const GridContext& context, int sequences,
                           StageIndex stage, Parameter* shared_table)
    : config_(config), context_(context), sequences_(sequences), stage_(stage) {
  config.validate(1, stage.given_blocks ? 1 : stage.count);
  if (const std::string why = why_no_grid_gpt(config, context.grid(), sequences); !why.empty())
    machine::reject("{}", why);
  SHARDMARK_CHECK(stage.index, >=, 0);
  SHARDMARK_CHECK(stage.index, <, stage.count);
  const BlockRange blocks = stage.blocks(config);
  SHARDMARK_CHECK(blocks.size(), >, 0);
  const bool tied = !config.untie_embeddings_and_output_weights;
  const std::int64_t tokens = tokens_of(config, sequences);
  if (stage.first()) {
    tokens_.emplace(context, "embedding.token", tokens, config.vocabulary, config.hidden);
    positions_.emplace(context, "embedding.position", tokens, config.sequence, config.hidden);
    tokens_->table().placement.tied_over_pp = tied && stage.count > 1;
  }
  for (int i = blocks.begin; i < blocks.end; ++i) {
    blocks_.push_back(std::make_unique<GridTransformerBlock>(context, fmt::format("blocks.{}", i),
                                                             config, sequences));
    for (GridParameter* parameter : blocks_.back()->parameters()) parameter->layer = 1 + i;
  }
  if (!stage.last()) return;
  has_own_table_ = !tied || (!stage.first() && !shared_table);
  if (has_own_table_) {
    table_.emplace(context.grid(), tied ? "embedding.token.weight" : "head.output.weight",
                   Shape{config.vocabulary, config.hidden}, table_block(context, config),
                   Role::weight);
    table_->placement.tied_over_pp = tied;
  }
  GridParameter& table = has_own_table_ ? *table_
                         : shared_table ? *static_cast<GridParameter*>(shared_table)
                                        : tokens_->table();
  head_.emplace(context, table, config, sequences);
  for (GridParameter* parameter : head_->parameters()) parameter->layer = 1 + config.layers;
  if (tied) table.layer = 0;  // layer of the embedding
}

Parameter* GridGptStage::table() {
  if (tokens_) return &tokens_->table();
  return table_ ? &*table_ : nullptr;
}

Shape GridGptStage::boundary(int sequences) const {
  SHARDMARK_CHECK(sequences, ==, sequences_);
  const GridBlock block = input_block(context_.grid(), context_.rank(), PairPlace::first,
                                      {tokens_of(config_, sequences_), config_.hidden, 1});
  return {block.rows, block.cols};
}

Parameters GridGptStage::embedding_parameters() {
  return plain(held({tokens_->parameters(), positions_->parameters()}));
}

Parameters GridGptStage::parameters() {
  Parameters all;
  for (const Parameters& part : parts()) all.insert(all.end(), part.begin(), part.end());
  if (head_ && !has_own_table_) all.pop_back();
  return all;
}

std::vector<Parameters> GridGptStage::parts() {
  std::vector<Parameters> all;
  if (tokens_) all.push_back(embedding_parameters());
  for (const auto& block : blocks_) all.push_back(plain(block->parameters()));
  if (head_) all.push_back(plain(head_->parameters()));
  return all;
}

void GridGptStage::initialize(const Initializer& initializer) {
  for (const Parameters& part : parts())
    for (Parameter* const parameter : part)
      fill(context_, initializer, *static_cast<GridParameter*>(parameter));
  if (!tokens_) return;
  std::vector<std::int32_t> positions;
  for (std::int64_t row = 0; row < tokens_->token_count(); ++row)  // of whole sequences
    positions.push_back(static_cast<std::int32_t>(row % config_.sequence));
  position_of_row_ =
      Tensor(context_.device, Dtype::int32, {tokens_->token_count()}, Category::buffers);
  context_.stream().copy(position_of_row_.data(), positions.data(), position_of_row_.bytes());
  context_.stream().synchronize();
}

void GridGptStage::zero_gradients() {
  for (Parameter* const parameter : parameters())
    static_cast<GridParameter*>(parameter)->zero_gradient(context_);
}

GridGptStage::Saved& GridGptStage::saved(int micro_batch) {
  const auto found = saved_.find(micro_batch);
  if (found == saved_.end())
    throw std::logic_error(
        fmt::format("GridGptStage: backward of micro-batch {} without its forward", micro_batch));
  return found->second;
}

void GridGptStage::embed(const TokenBatch& batch, const Tensor& x) {
  tokens_->forward(batch.tokens + tokens_->first_token(), x);
  const Tensor added = context_.tensor(x.shape(), Category::buffers);
  positions_->forward(position_of_row_.as<std::int32_t>(), added);
  context_.kernels().add(x, added, x);
}

void GridGptStage::forward(int micro_batch, const TokenBatch& batch, const Tensor& in,
                           const Tensor& out) {
  const Shape shape = boundary(batch.sequences);
  const auto [place, fresh] = saved_.try_emplace(micro_batch);
  if (!fresh)
    throw std::logic_error(
        fmt::format("GridGptStage: micro-batch {} is in flight already", micro_batch));
  Saved& saved = place->second;
  saved.batch = batch;
  saved.blocks.resize(blocks_.size());
  Tensor x = in;
  if (tokens_) {
    x = context_.tensor(shape, Category::activations);
    use(embedding_parameters(), [&] { embed(batch, x); });
  }
  SHARDMARK_CHECK(x.shape().text(), ==, shape.text());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const bool leaves_stage = i + 1 == blocks_.size() && !head_;
    const Tensor y = leaves_stage ? out : context_.tensor(shape, Category::activations);
    use(plain(blocks_[i]->parameters()),
        [&] { blocks_[i]->forward(x, y, saved.blocks[i], Category::activations); });
    x = y;
  }
  if (head_)
    use(plain(head_->parameters()), [&] { head_->forward(x, batch.targets, out, saved.head); });
}

// A gradient that the head shares with the embedding is not ready, because the embedding adds to it
// later.
void GridGptStage::head_weights(Saved& saved) {
  const machine::During weights(machine::Part::backward_weights);
  Parameters parameters = plain(head_->parameters());
  observer_.before_gradients(parameters);
  head_->backward_weights(saved.head);
  if (!has_own_table_) parameters.pop_back();
  observer_.gradients_ready(parameters);
}

void GridGptStage::block_weights(Saved& saved, std::size_t block) {
  const machine::During weights(machine::Part::backward_weights);
  const Parameters parameters = plain(blocks_[block]->parameters());
  observer_.before_gradients(parameters);
  blocks_[block]->backward_weights(saved.blocks[block]);
  observer_.gradients_ready(parameters);
}

void GridGptStage::embedding_weights(Saved& saved) {
  const machine::During weights(machine::Part::backward_weights);
  const Parameters parameters = embedding_parameters();
  observer_.before_gradients(parameters);
  tokens_->backward_weights(saved.batch.tokens + tokens_->first_token(), saved.d_embedding);
  positions_->backward_weights(position_of_row_.as<std::int32_t>(), saved.d_embedding);
  saved.d_embedding = Tensor();
  observer_.gradients_ready(parameters);
}

void GridGptStage::run_backward(Saved& saved, const Tensor& d_out, const Tensor& d_in,
                                Halves halves) {
  const bool both = halves == Halves::both;
  const Category kept = both ? Category::buffers : Category::activations;
  const Shape shape = boundary(saved.batch.sequences);
  Tensor d_y = d_out;
  if (head_) {
    d_y = context_.tensor(shape, kept);
    use(plain(head_->parameters()),
        [&] { head_->backward_input(loss_scale_, d_y, saved.head, kept); });
    if (both) head_weights(saved);
  }
  SHARDMARK_CHECK(d_y.shape().text(), ==, shape.text());
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const bool leaves_stage = i == 0 && !tokens_;
    const Tensor d_x = leaves_stage ? d_in : context_.tensor(shape, kept);
    use(plain(blocks_[i]->parameters()),
        [&] { blocks_[i]->backward_input(d_y, d_x, saved.blocks[i], kept); });
    d_y = d_x;
    if (both) block_weights(saved, i);
  }
  if (tokens_) {
    saved.d_embedding = d_y;
    if (both) embedding_weights(saved);
  }
  saved.input_half_done = true;
}

void GridGptStage::backward(int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  run_backward(saved(micro_batch), d_out, d_in, Halves::both);
  saved_.erase(micro_batch);
}

void GridGptStage::backward_input(int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  Saved& kept = saved(micro_batch);
  SHARDMARK_CHECK(kept.input_half_done, ==, false);
  run_backward(kept, d_out, d_in, Halves::input);
}

void GridGptStage::backward_weights(int micro_batch) {
  Saved& kept = saved(micro_batch);
  SHARDMARK_CHECK(kept.input_half_done, ==, true);
  if (head_) head_weights(kept);
  for (std::size_t i = blocks_.size(); i-- > 0;) block_weights(kept, i);
  if (tokens_) embedding_weights(kept);
  saved_.erase(micro_batch);
}

}  // namespace layers
