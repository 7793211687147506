#pragma once
// A model, or one stage of it in a pipeline, as the training step drives it. GptStage (gpt.h)
// shards it in one dimension, GridGptStage (grids/grid_gpt.h) over a grid of ranks.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "layers/gpt_config.h"
#include "layers/models/checkpoints.h"
#include "layers/models/token_batch.h"
#include "layers/parameter.h"

namespace layers {

struct BlockRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
};

struct StageIndex {
  int index = 0, count = 1;
  std::optional<BlockRange> given_blocks = {};  // empty: the model's blocks, split evenly
  bool first() const { return index == 0; }
  bool last() const { return index == count - 1; }
  BlockRange blocks(const GptConfig& config) const;
};

// Called as the parts of a stage (embedding, each block, head) are used, with the parameters of the
// part. ZeRO-3 fetches and drops values here, and reduction of a gradient may start.
struct StageObserver {
  using Call = std::function<void(const Parameters&)>;
  static void ignore(const Parameters&) {}
  Call before_use = ignore, after_use = ignore;  // of the values
  // Called around the weight half of a part, in every micro-batch. The weight half reads no values.
  // A table that embedding and head share is begun by both, and is ready after the embedding.
  Call before_gradients = ignore, gradients_ready = ignore;
};

class ModelStage {
 public:
  ModelStage() = default;
  ModelStage(const ModelStage&) = delete;
  ModelStage& operator=(const ModelStage&) = delete;
  virtual ~ModelStage() = default;

  virtual StageIndex stage() const = 0;
  virtual Parameters parameters() = 0;  // each once, in forward order; without a shared table
  virtual Parameter* table() = 0;  // of the embedding, or the tied one of the last stage; else null
  // Returns the parameters of the embedding, of each block and of the head, as the observer gets
  // them. A table that embedding and head share is in both.
  virtual std::vector<Parameters> parts() = 0;
  // Returns the shape of a message between stages.
  virtual Shape boundary(int sequences) const = 0;
  // Fills the values; allocates empty tensors.
  virtual void initialize(const Initializer& initializer) = 0;

  void observe(StageObserver observer) { observer_ = std::move(observer); }
  void set_loss_scale(double scale) { loss_scale_ = scale; }
  // Sets the number of rows of the table that are tokens, not padding (output_head.h).
  virtual void set_vocabulary(std::int64_t vocabulary) = 0;

  // in: empty on the first stage. out: on the last stage one double, the sum of the losses.
  virtual void forward(int micro_batch, const TokenBatch& batch, const Tensor& in,
                       const Tensor& out) = 0;
  // Runs both halves, part by part, with the least memory. d_out is empty on the last stage, d_in
  // on the first.
  virtual void backward(int micro_batch, const Tensor& d_out, const Tensor& d_in) = 0;
  // Run the halves separately, for schedules that fill bubbles with the second half.
  virtual void backward_input(int micro_batch, const Tensor& d_out, const Tensor& d_in) = 0;
  virtual void backward_weights(int micro_batch) = 0;

  virtual Checkpoints::Moved checkpoints_moved() const { return {}; }

 protected:
  // Calls work(), which uses the values of these parameters.
  template <class Work>
  void use(const Parameters& parameters, const Work& work) const {
    observer_.before_use(parameters);
    work();
    observer_.after_use(parameters);
  }

  StageObserver observer_;
  double loss_scale_ = 1;
};

}  // namespace layers
