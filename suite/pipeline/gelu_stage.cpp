#include "suite/pipeline/gelu_stage.h"

#include <cmath>

#include "collectives/placement.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"

namespace suite {

using machine::Category;
using machine::Tensor;
using pipeline::Action;
using pipeline::Kind;

namespace {

machine::Kernels& kernels_of(const Tensor& tensor) { return tensor.device().stream().kernels(); }

void multiply(const machine::Matrix& a, const machine::Matrix& b, const Tensor& c, float beta = 0) {
  machine::gemm(c.device().stream(), a, b, matrix(c), 1, beta);
}

void fill_random(const Tensor& tensor, std::uint64_t seed, double stddev) {
  kernels_of(tensor).fill_normal(tensor, seed, {0, 0, tensor.cols()}, 0, stddev);
}

}  // namespace

Tensor GeluModel::all_rows(machine::Device& device) const {
  return Tensor(device, dtype, {micro_batches * tokens, hidden}, Category::buffers);
}

Tensor GeluModel::rows(const Tensor& all, int micro_batch) const {
  return all.row_range(micro_batch * tokens, tokens);
}

void GeluModel::fill_inputs(const Tensor& all) const { fill_random(all, seed + 1, 1); }

void GeluModel::fill_loss_gradients(const Tensor& all) const { fill_random(all, seed + 2, 1); }

// A spread of sqrt(2 / hidden): values keep their size from part to part (He et al. 2015).
GeluPart::GeluPart(machine::Device& device, const GeluModel& model, int part)
    : weight(device, model.dtype, {model.hidden, model.hidden}, Category::parameters),
      weight_gradient(device, collectives::gradient_dtype(model.dtype), weight.shape(),
                      Category::gradients) {
  fill_random(weight, model.seed + 16 + static_cast<std::uint64_t>(part),
              std::sqrt(2 / static_cast<double>(model.hidden)));
  kernels_of(weight_gradient).fill(weight_gradient, 0);
}

void GeluPart::forward(const Tensor& x, const Tensor& z, const Tensor& y) const {
  multiply(matrix(x), matrix(weight), z);
  kernels_of(z).gelu(z, y);
}

void GeluPart::backward_gelu(const Tensor& z, const Tensor& d_y, const Tensor& d_z) const {
  kernels_of(z).gelu_backward(z, d_y, d_z);
}

void GeluPart::backward_input(const Tensor& d_z, const Tensor& d_x) const {
  multiply(matrix(d_z), matrix(weight).transposed(), d_x);
}

void GeluPart::backward_weights(const Tensor& x, const Tensor& d_z) const {
  multiply(matrix(x).transposed(), matrix(d_z), weight_gradient, 1);
}

GeluStage::GeluStage(machine::Device& device, const GeluModel& model, int stage)
    : device_(device),
      model_(model),
      stage_(stage),
      d_z_(device, model.dtype, model.boundary(), Category::buffers) {
  for (int chunk = 0; chunk < model.placement.chunks(); ++chunk) {
    parts_.emplace_back(device, model, model.placement.part(stage, chunk));
    if (begins(chunk)) {
      inputs_ = model.all_rows(device);
      d_inputs_ = model.all_rows(device);
      model.fill_inputs(inputs_);
    }
    if (ends(chunk)) {
      outputs_ = model.all_rows(device);
      loss_gradients_ = model.all_rows(device);
      model.fill_loss_gradients(loss_gradients_);
    }
  }
}

pipeline::Stage GeluStage::callables() {
  pipeline::Stage stage;
  stage.forward = [this](const Action& a, const Tensor& in, const Tensor& out) {
    forward(a, in, out);
  };
  stage.backward =
      stage.backward_input = [this](const Action& a, const Tensor& in, const Tensor& d_out,
                                    const Tensor& d_in) { backward(a, in, d_out, d_in); };
  stage.backward_weights = [this](const Action& a, const Tensor& in, const Tensor& d_out) {
    backward(a, in, d_out, {});
  };
  return stage;
}

void GeluStage::clear_gradients() {
  for (const GeluPart& part : parts_)
    kernels_of(part.weight_gradient).fill(part.weight_gradient, 0);
}

Tensor GeluStage::keep(Key key) {
  if (free_.empty())
    free_.emplace_back(device_, model_.dtype, model_.boundary(), Category::activations);
  const Tensor z = free_.back();
  free_.pop_back();
  kept_[key] = z;
  return z;
}

Tensor GeluStage::input_of(const Action& a, const Tensor& given) const {
  return begins(a.chunk) ? model_.rows(inputs_, a.micro_batch) : given;
}

Tensor GeluStage::d_output_of(const Action& a, const Tensor& given) const {
  return ends(a.chunk) ? model_.rows(loss_gradients_, a.micro_batch) : given;
}

void GeluStage::forward(const Action& a, const Tensor& input, const Tensor& output) {
  const Tensor x = input_of(a, input);
  const Tensor y = ends(a.chunk) ? model_.rows(outputs_, a.micro_batch) : output;
  parts_[static_cast<std::size_t>(a.chunk)].forward(x, keep({a.chunk, a.micro_batch}), y);
  if (observer) observer(a, {x, y, {}, {}});
}

// Runs one half or both. The half of the weights recomputes d_z, which is cheaper than to keep it.
void GeluStage::backward(const Action& a, const Tensor& input, const Tensor& d_output,
                         const Tensor& d_input) {
  const GeluPart& part = parts_[static_cast<std::size_t>(a.chunk)];
  const Key key{a.chunk, a.micro_batch};
  const Tensor z = kept_.at(key), x = input_of(a, input), d_y = d_output_of(a, d_output);
  part.backward_gelu(z, d_y, d_z_);
  Tensor d_x;
  if (a.kind != Kind::backward_weights) {
    d_x = begins(a.chunk) ? model_.rows(d_inputs_, a.micro_batch) : d_input;
    part.backward_input(d_z_, d_x);
  }
  if (a.kind != Kind::backward_input) {
    part.backward_weights(x, d_z_);
    free_.push_back(z);
    kept_.erase(key);
  }
  if (observer && d_x) observer(a, {x, {}, d_y, d_x});
}

}  // namespace suite
