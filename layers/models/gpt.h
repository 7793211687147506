#pragma once
// A GPT, BERT or T5 model (gpt_config.h), or one stage of it in a pipeline: its blocks, the
// embedding on the first stage, the head on the last. With one stage both accumulate into one token
// table. With more, both end stages hold it and its placement is tied_over_pp, unless they are on
// one rank and share the table. An untied head has its own weight.
//
//   GptStage stage(config, device, tp, Dtype::bfloat16, {.index = 0, .count = 2});
//   stage.initialize(Initializer::gpt2(seed, config.layers));
//   stage.zero_gradients();
//   stage.forward(0, batch, {}, out);          // in: empty on the first stage
//   stage.backward(0, d_out, {});              // or backward_input, and later backward_weights
//
// Activations between stages are [tokens, hidden], tokens = batch.sequences * config.sequence, and
// with sequence parallelism [tokens/tp, hidden], this rank's own rows; tokens and targets have all
// rows. Of an encoder-decoder they are packed_rows.h, and the tables of the relative bias of both
// stacks belong to the embedding. With context parallelism tokens and targets are those of the
// rank's positions, and `tokens` is their number. On the last stage `out` is one double: the *sum*
// of the losses of the tokens that have a target. Gradients are those of the sum, times loss_scale;
// the optimizer step divides by the number of those tokens, once. With experts the sum has, for
// each layer, the tokens of the rank times its auxiliary losses (means over these tokens;
// routing.h), which are not in `out` but in batch.routing.
//
// The caller names micro-batches by an index; any number may be in flight. Tensors for backward are
// kept under Category::activations, and backward frees them. gpt_memory.h lists all memory exactly,
// gpt_cost.h the collectives over tp. Tensors of the caller are not copied: `in`, d_out, tokens and
// targets stay unchanged until backward_weights.
//
// Groups of layers that are recomputed keep only their input (checkpoints.h: whole, partitioned, in
// host memory; an input that the caller keeps anyway is not copied). backward (or backward_input)
// runs their forward again, and calls the observer as for any use.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "layers/context.h"
#include "layers/dropout.h"
#include "layers/embedding.h"
#include "layers/gpt_config.h"
#include "layers/models/activation_options.h"
#include "layers/models/checkpoints.h"
#include "layers/models/model_stage.h"
#include "layers/models/stack_block.h"
#include "layers/models/token_batch.h"
#include "layers/output_head.h"

namespace layers {

// Throws std::invalid_argument that names the option with which a model does not support products
// in 8 bits.
void validate_fp8(const GptConfig& config, const ActivationOptions& options, Dtype dtype,
                  const Fp8Options& fp8);

class GptStage final : public ModelStage {
 public:
  // Throws the exceptions of GptConfig::validate and ActivationOptions::validate. Allocates no
  // memory. checkpoint_host: for cpu_checkpointing, see Checkpoints. shared_table: for the last
  // stage, the tied table of a first stage on the same rank, which keeps the parameter. cp: the
  // split of the sequences; it requires options.use_flash_attn. experts: the groups of a model with
  // experts; by default this rank has all of them. fp8: the products of the blocks' linear layers.
  GptStage(const GptConfig& config, machine::Device& device, collectives::Communicator& tp,
           Dtype dtype, StageIndex stage = {}, const ActivationOptions& options = {},
           machine::Device* checkpoint_host = nullptr, Parameter* shared_table = nullptr,
           const ContextParallel& cp = {}, const std::optional<MoeCommunicators>& experts = {},
           const Fp8Scheme& fp8 = {});

  const GptConfig& config() const { return config_; }
  StageIndex stage() const override { return stage_; }
  Parameters parameters() override;
  Parameter* table() override { return table_ ? &*table_ : nullptr; }
  std::vector<Parameters> parts() override;
  // Throws like ActivationOptions::validate_rows.
  Shape boundary(int sequences) const override;

  // Fill values and zero gradients. Both allocate empty tensors.
  void initialize(const Initializer& initializer) override;
  void zero_gradients();

  void set_vocabulary(std::int64_t vocabulary) override {
    if (head_) head_->set_vocabulary(vocabulary);
  }

  void forward(int micro_batch, const TokenBatch& batch, const Tensor& in,
               const Tensor& out) override;
  void backward(int micro_batch, const Tensor& d_out, const Tensor& d_in) override;
  void backward_input(int micro_batch, const Tensor& d_out, const Tensor& d_in) override;
  void backward_weights(int micro_batch) override;

  int in_flight() const { return static_cast<int>(saved_.size()); }
  Checkpoints::Moved checkpoints_moved() const override { return checkpoints_.moved(); }

 private:
  struct Saved {
    TokenBatch batch;
    std::vector<StackBlock::Saved> blocks;
    std::vector<Tensor> inputs;  // of each group; empty unless it is recomputed
    OutputHead::Saved head;
    Tensor d_embedding;
    bool input_half_done = false;
  };
  enum class Halves { input, both };

  Parameters embedding_parameters();
  void embed(const TokenBatch& batch, const Tensor& x);
  PackedRows packed(const Tensor& x) const;
  // Returns the rows that the head reads.
  Tensor rows_of_head(const Tensor& x) const;
  Saved& saved(int micro_batch);
  Category category_of_input(std::size_t block) const;
  bool kept_apart(const LayerGroup& group) const;
  void recompute(Saved& saved, std::size_t group, Category kept);
  void run_backward(Saved& saved, const Tensor& d_out, const Tensor& d_in, Halves halves);
  void head_weights(Saved& saved);
  // begun: backward_input has added to some of the gradients.
  void block_weights(Saved& saved, std::size_t block, bool begun = false);
  void embedding_weights(Saved& saved);

  GptConfig config_;
  ActivationOptions options_;
  Context context_;
  Checkpoints checkpoints_;
  StageIndex stage_;
  bool has_own_table_ = false;              // the head's table is not the embedding's
  std::optional<Parameter> table_;          // on the first stage, and tied on the last
  std::optional<Parameter> output_weight_;  // on the last stage, if untied
  std::optional<Embedding> embedding_;
  std::optional<Parameter> encoder_bias_, decoder_bias_;  // of an encoder-decoder's first stage
  Dropout embedding_dropout_, decoder_dropout_;
  std::vector<std::unique_ptr<StackBlock>> blocks_;
  std::vector<LayerGroup> groups_;
  std::optional<OutputHead> head_;
  std::map<int, Saved> saved_;
};

}  // namespace layers
