#pragma once
// The model that the pipeline unit runs: parts y = gelu(x W), W [hidden, hidden], with backward in
// two halves; and one stage of it as the executor's callables.
//
// Random inputs, loss gradients and weights depend only on seed and global index, so a stage and a
// device that holds the whole model start from the same bits.

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "machine/device/tensor.h"
#include "pipeline/execute.h"

namespace suite {

struct GeluModel {
  machine::Dtype dtype{};
  std::int64_t tokens = 0, hidden = 0;  // of a micro-batch
  int micro_batches = 1;
  pipeline::Placement placement;
  std::uint64_t seed = 0;

  machine::Shape boundary() const { return {tokens, hidden}; }
  // Rows of all micro-batches, one after the other.
  machine::Tensor all_rows(machine::Device& device) const;
  machine::Tensor rows(const machine::Tensor& all, int micro_batch) const;
  void fill_inputs(const machine::Tensor& all) const;
  void fill_loss_gradients(const machine::Tensor& all) const;
};

struct GeluPart {
  machine::Tensor weight;           // [hidden, hidden]
  machine::Tensor weight_gradient;  // same; float under narrower dtypes. Accumulates

  // A part has the same weight in every copy of the model.
  GeluPart(machine::Device& device, const GeluModel& model, int part);
  // All [tokens, hidden]: z = x W, y = gelu(z).
  void forward(const machine::Tensor& x, const machine::Tensor& z, const machine::Tensor& y) const;
  void backward_gelu(const machine::Tensor& z, const machine::Tensor& d_y,
                     const machine::Tensor& d_z) const;
  void backward_input(const machine::Tensor& d_z, const machine::Tensor& d_x) const;
  void backward_weights(const machine::Tensor& x, const machine::Tensor& d_z) const;
};

// The inputs and outputs of one action on one part; y is empty in backward, d_y and d_x in forward.
struct Observed {
  machine::Tensor x, y, d_y, d_x;
};

// Keeps, in addition to the executor's buffers: z of every live micro-batch (activations), one d_z,
// and, if a copy of the model begins or ends here, the two tensors of all rows there (buffers).
class GeluStage {
 public:
  GeluStage(machine::Device& device, const GeluModel& model, int stage);
  pipeline::Stage callables();
  void clear_gradients();

  bool begins(int chunk) const { return model_.placement.begins(stage_, chunk); }
  bool ends(int chunk) const { return model_.placement.ends(stage_, chunk); }
  const std::vector<GeluPart>& parts() const { return parts_; }  // by chunk
  // Outputs of the chunk that ends, input gradients of the chunk that begins; rows of other copies'
  // micro-batches are never written.
  const machine::Tensor& outputs() const { return outputs_; }
  const machine::Tensor& input_gradients() const { return d_inputs_; }
  // Called after every action while it is set.
  std::function<void(const pipeline::Action&, const Observed&)> observer;

 private:
  using Key = std::pair<int, int>;  // chunk, micro-batch
  machine::Tensor input_of(const pipeline::Action&, const machine::Tensor& given) const;
  machine::Tensor d_output_of(const pipeline::Action&, const machine::Tensor& given) const;
  void forward(const pipeline::Action&, const machine::Tensor& input,
               const machine::Tensor& output);
  void backward(const pipeline::Action&, const machine::Tensor& input,
                const machine::Tensor& d_output, const machine::Tensor& d_input);
  machine::Tensor keep(Key key);

  machine::Device& device_;
  const GeluModel model_;
  const int stage_;
  std::vector<GeluPart> parts_;
  machine::Tensor inputs_, d_inputs_;  // [micro_batches * tokens, hidden], if the model begins here
  machine::Tensor outputs_, loss_gradients_;  // same, if it ends here
  machine::Tensor d_z_;
  std::map<Key, machine::Tensor> kept_;  // z, alive
  std::vector<machine::Tensor> free_;    // free memory for z
};

}  // namespace suite
