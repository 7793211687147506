#pragma once
// The model that the pipeline unit runs: parts y = gelu(x W), W [hidden, hidden], whose backward
// has two halves. GeluStage has the callables that the executor runs on one stage.
//
// Random inputs, loss gradients and weights depend only on seed and global index, so a stage and a
// device that holds the whole model start from the same bits.

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "collectives/placement.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "pipeline/execute.h"
#include "suite/pipeline/part_reference.h"
#include "suite/reference/unit.h"

namespace suite {

struct GeluModel {
  Dtype dtype{};
  std::int64_t tokens = 0, hidden = 0;  // tokens of a micro-batch
  int micro_batches = 1;
  pipeline::Placement placement;
  std::uint64_t seed = 0;

  machine::Shape boundary() const { return {tokens, hidden}; }
  // Returns a tensor for the rows of all micro-batches, in order.
  Tensor all_rows(machine::Device& device) const {
    return Tensor(device, dtype, {micro_batches * tokens, hidden}, Category::buffers);
  }
  Tensor rows(const Tensor& all, int micro_batch) const {
    return all.row_range(micro_batch * tokens, tokens);
  }
  Tensor inputs(machine::Device& device) const { return random(all_rows(device), seed + 1, 1); }
  Tensor loss_gradients(machine::Device& device) const {
    return random(all_rows(device), seed + 2, 1);
  }
  static Tensor random(const Tensor& tensor, std::uint64_t seed, double stddev) {
    tensor.device().stream().kernels().fill_normal(tensor, seed, {0, 0, tensor.cols()}, 0, stddev);
    return tensor;
  }
};

// All x, y, z and their gradients are [tokens, hidden]: z = x W, y = gelu(z).
struct GeluPart {
  Tensor weight;           // [hidden, hidden]
  Tensor weight_gradient;  // [hidden, hidden], accumulated; float for narrower dtypes

  // A part has the same weight in every copy of the model. A deviation of sqrt(2 / hidden) keeps
  // the size of values from part to part (He et al. 2015).
  GeluPart(machine::Device& device, const GeluModel& model, int part)
      : weight(device, model.dtype, {model.hidden, model.hidden}, Category::parameters),
        weight_gradient(device, collectives::gradient_dtype(model.dtype), weight.shape(),
                        Category::gradients) {
    GeluModel::random(weight, model.seed + 16 + static_cast<std::uint64_t>(part),
                      std::sqrt(2 / static_cast<double>(model.hidden)));
    clear_gradient();
  }
  void clear_gradient() const { kernels().fill(weight_gradient, 0); }
  void forward(const Tensor& x, const Tensor& z, const Tensor& y) const {
    multiply(matrix(x), matrix(weight), z);
    kernels().gelu(z, y);
  }
  void backward_gelu(const Tensor& z, const Tensor& d_y, const Tensor& d_z) const {
    kernels().gelu_backward(z, d_y, d_z);
  }
  void backward_input(const Tensor& d_z, const Tensor& d_x) const {
    multiply(matrix(d_z), matrix(weight).transposed(), d_x);
  }
  void backward_weights(const Tensor& x, const Tensor& d_z) const {
    multiply(matrix(x).transposed(), matrix(d_z), weight_gradient, 1);
  }

 private:
  machine::Kernels& kernels() const { return weight.device().stream().kernels(); }
  void multiply(const machine::Matrix& a, const machine::Matrix& b, const Tensor& c,
                float beta = 0) const {
    machine::gemm(weight.device().stream(), a, b, matrix(c), 1, beta);
  }
};

// Keeps these tensors in addition to the executor's. Activations: z of every live micro-batch.
// Buffers: one d_z, and the two tensors of all rows if a copy of the model begins or ends here.
class GeluStage {
 public:
  GeluStage(machine::Device& device, const GeluModel& model, int stage)
      : device_(device),
        model_(model),
        stage_(stage),
        d_z_(device, model.dtype, model.boundary(), Category::buffers) {
    for (int chunk = 0; chunk < model.placement.chunks(); ++chunk) {
      parts_.emplace_back(device, model, model.placement.part(stage, chunk));
      if (begins(chunk)) {
        inputs_ = model.inputs(device);
        d_inputs_ = model.all_rows(device);
      }
      if (ends(chunk)) {
        outputs_ = model.all_rows(device);
        loss_gradients_ = model.loss_gradients(device);
      }
    }
  }

  pipeline::Stage callables() {
    const auto run_backward = [this](const auto&... arguments) { backward(arguments...); };
    return {[this](const auto&... arguments) { forward(arguments...); }, run_backward, run_backward,
            run_backward};
  }
  void clear_gradients() {
    for (const GeluPart& part : parts_) part.clear_gradient();
  }

  bool begins(int chunk) const { return model_.placement.begins(stage_, chunk); }
  bool ends(int chunk) const { return model_.placement.ends(stage_, chunk); }
  const GeluPart& part(int chunk) const { return parts_[static_cast<std::size_t>(chunk)]; }
  // Return the outputs of the chunk that ends the model, and the input gradients of the chunk that
  // begins it. Rows of other copies' micro-batches are never written.
  const Tensor& outputs() const { return outputs_; }
  const Tensor& input_gradients() const { return d_inputs_; }

  using Key = std::pair<int, int>;  // chunk, micro-batch
  // If set, every action stores its inputs and outputs here.
  std::map<Key, PartObserved>* observed = nullptr;

 private:
  Tensor input_of(const pipeline::Action& a, const Tensor& given) const {
    return begins(a.chunk) ? model_.rows(inputs_, a.micro_batch) : given;
  }

  void forward(const pipeline::Action& a, const Tensor& input, const Tensor& output) {
    const Tensor x = input_of(a, input);
    const Tensor y = ends(a.chunk) ? model_.rows(outputs_, a.micro_batch) : output;
    if (free_.empty())
      free_.emplace_back(device_, model_.dtype, model_.boundary(), Category::activations);
    const Tensor z = kept_[{a.chunk, a.micro_batch}] = free_.back();
    free_.pop_back();
    part(a.chunk).forward(x, z, y);
    if (!observed) return;
    PartObserved& seen = (*observed)[{a.chunk, a.micro_batch}];
    seen.x = to_doubles(x);
    seen.y = to_doubles(y);
  }

  // Runs one half or both. backward_weights recomputes d_z, because this is cheaper than keeping
  // it.
  void backward(const pipeline::Action& a, const Tensor& input, const Tensor& d_output,
                const Tensor& d_input = {}) {
    const Key key{a.chunk, a.micro_batch};
    const Tensor z = kept_.at(key), x = input_of(a, input),
                 d_y = ends(a.chunk) ? model_.rows(loss_gradients_, a.micro_batch) : d_output;
    part(a.chunk).backward_gelu(z, d_y, d_z_);
    Tensor d_x;
    if (a.kind != pipeline::Kind::backward_weights) {
      d_x = begins(a.chunk) ? model_.rows(d_inputs_, a.micro_batch) : d_input;
      part(a.chunk).backward_input(d_z_, d_x);
    }
    if (a.kind != pipeline::Kind::backward_input) {
      part(a.chunk).backward_weights(x, d_z_);
      free_.push_back(z);
      kept_.erase(key);
    }
    if (!observed || !d_x) return;
    PartObserved& seen = (*observed)[key];
    seen.x = to_doubles(x);
    seen.d_y = to_doubles(d_y);
    seen.d_x = to_doubles(d_x);
  }

  machine::Device& device_;
  const GeluModel model_;
  const int stage_;
  std::vector<GeluPart> parts_;
  Tensor inputs_, d_inputs_;         // [micro_batches * tokens, hidden], if the model begins here
  Tensor outputs_, loss_gradients_;  // as inputs_, if the model ends here
  Tensor d_z_;
  std::map<Key, Tensor> kept_;  // live z
  std::vector<Tensor> free_;    // memory of earlier z, for reuse
};

}  // namespace suite
