#pragma once
// A GPT of GPT-2's shape over a grid of ranks in 2, 2.5 or 3 dimensions (tensor_grids/), or one
// stage of it in a pipeline. The counterpart of GptStage, whose contract for calls, halves and
// observers it shares.
//
//   GridGptStage stage(config, context, sequences);          // context: grid_context.h
//   stage.initialize(Initializer::gpt2(seed, config.layers));
//   stage.forward(0, batch, {}, out);
//
// Activations between blocks and between stages are this rank's block of [tokens, hidden]. tokens
// and targets of a batch are those of the whole micro-batch. On the last stage `out` is the sum of
// the losses of the rank's rows: ranks that differ along vocabulary_axis only have the same sum,
// and the others have other tokens. Gradients are those of the sum over all rows, in the rank's
// blocks; a rank of a depth of 2.5d has them complete, too. A rank has only the parameters that it
// stores: biases and gains are on some ranks only (grid_vector.h).
//
// The position table [sequence, hidden] is an embedding of its own, split as the token table, whose
// tokens are the positions of the rows.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layers/models/grids/grid_output_head.h"
#include "layers/models/grids/grid_transformer_block.h"
#include "layers/models/model_stage.h"
#include "layers/tensor_grids/grid_embedding.h"

namespace layers {

// Returns why a model with micro-batches of `sequences` is not supported over the grid, or empty.
std::string why_no_grid_gpt(const GptConfig& config, const TensorGrid& grid, int sequences);

class GridGptStage final : public ModelStage {
 public:
  // Throws std::invalid_argument with why_no_grid_gpt. Allocates no memory. sequences: of every
  // micro-batch. shared_table: as for GptStage, the table() of another GridGptStage.
  GridGptStage(const GptConfig& config, const GridContext& context, int sequences,
               StageIndex stage = {}, Parameter* shared_table = nullptr);

  StageIndex stage() const override { return stage_; }
  Parameters parameters() override;
  Parameter* table() override;
  std::vector<Parameters> parts() override;
  Shape boundary(int sequences) const override;
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

 private:
  struct Saved {
    TokenBatch batch;
    std::vector<GridTransformerBlock::Saved> blocks;
    GridOutputHead::Saved head;
    Tensor d_embedding;
    bool input_half_done = false;
  };
  enum class Halves { input, both };

  Parameters embedding_parameters();
  void embed(const TokenBatch& batch, const Tensor& x);
  Saved& saved(int micro_batch);
  void run_backward(Saved& saved, const Tensor& d_out, const Tensor& d_in, Halves halves);
  void head_weights(Saved& saved);
  void block_weights(Saved& saved, std::size_t block);
  void embedding_weights(Saved& saved);

  GptConfig config_;
  GridContext context_;
  int sequences_;
  StageIndex stage_;
  bool has_own_table_ = false;                       // the head's table is not the embedding's
  std::optional<GridEmbedding> tokens_, positions_;  // on the first stage
  std::optional<GridParameter> table_;               // on the last stage, if it has its own
  std::vector<std::unique_ptr<GridTransformerBlock>> blocks_;
  std::optional<GridOutputHead> head_;
  Tensor position_of_row_;  // int32, of the embedding's rows
  std::map<int, Saved> saved_;
};

}  // namespace layers
