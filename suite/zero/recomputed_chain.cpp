#include "suite/zero/recomputed_chain.h"

#include <utility>

#include "machine/device/kernels.h"
#include "suite/reference/whole_values.h"

namespace suite {

using machine::Category;
using machine::Dtype;
using machine::matrix;
using machine::Tensor;

std::map<Category, std::size_t> ChainShape::peaks() const {
  const auto L = static_cast<std::size_t>(layers);
  return {{Category::parameters, 2 * L * matrix_bytes()},
          {Category::gradients, 2 * L * matrix_bytes()},
          {Category::activations, L * x_bytes()},
          {Category::buffers, x_bytes() + 3 * inner_bytes()}};
}

std::size_t ChainShape::live_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [category, peak] : peaks()) bytes += peak;
  return bytes;
}

// Products of a layer: two forward, one recomputed, four backward.
double ChainShape::flops() const {
  return 7.0 * 2 * tokens * hidden * inner * layers * micro_batches;
}

RecomputedChain::RecomputedChain(const ChainShape& shape, machine::Device& device, bool arenas,
                                 std::uint64_t seed, Told before_allocation)
    : shape_(shape),
      device_(device),
      seed_(seed),
      before_allocation_(std::move(before_allocation)),
      layers_(static_cast<std::size_t>(shape.layers)) {
  const machine::Shape up{shape.hidden, shape.inner}, down{shape.inner, shape.hidden};
  std::uint64_t key = seed;
  for (Layer& layer : layers_) {
    layer.up = allocate(up, Category::parameters);
    layer.down = allocate(down, Category::parameters);
    for (const Tensor& weight : {layer.up, layer.down})
      device.stream().kernels().fill_normal(weight, ++key, {}, 0, 0.02);
  }
  if (!arenas) return;
  const std::int64_t layers = shape.layers;
  const auto arena = [&](std::int64_t elements, Category category) {
    if (before_allocation_) before_allocation_(category);
    return machine::ContiguousArena(device, Dtype::float32, elements, category);
  };
  checkpoints_ = arena(layers * shape.tokens * shape.hidden, Category::activations);
  gradients_ = arena(2 * layers * up.size(), Category::gradients);
}

void RecomputedChain::step() {
  for (Layer& layer : layers_) layer.d_up = layer.d_down = Tensor();
  if (gradients_) gradients_->clear();
  for (int i = 0; i < shape_.micro_batches; ++i) micro_batch(i);
}

void RecomputedChain::micro_batch(int index) {
  machine::Kernels& kernels = device_.stream().kernels();
  if (checkpoints_) checkpoints_->clear();
  std::vector<Tensor> inputs{checkpoint()};
  kernels.fill_normal(inputs[0], seed_ - 1 - static_cast<std::uint64_t>(index), {}, 0, 1);
  Tensor d_y;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Tensor inner = temporary(shape_.inner);
    const Tensor active = temporary(shape_.inner);
    forward_half(layers_[l], inputs[l], inner, active);
    inner = Tensor();
    const bool last = l + 1 == layers_.size();
    const Tensor y = last ? temporary(shape_.hidden) : checkpoint();
    device_.stream().copy(y.data(), inputs[l].data(), y.bytes());
    gemm(device_.stream(), matrix(active), matrix(layers_[l].down), matrix(y), 1, 1);
    if (last)
      d_y = y;  // the loss is half the sum of its squares
    else
      inputs.push_back(y);
  }
  for (std::size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    Tensor inner = temporary(shape_.inner), active = temporary(shape_.inner);
    forward_half(layer, inputs[l], inner, active);
    add_product(matrix(active).transposed(), matrix(d_y), layer.d_down);
    Tensor d_active = temporary(shape_.inner);
    gemm(device_.stream(), matrix(d_y), matrix(layer.down).transposed(), matrix(d_active));
    active = Tensor();
    const Tensor d_inner = temporary(shape_.inner);
    kernels.gelu_backward(inner, d_active, d_inner);
    inner = d_active = Tensor();
    add_product(matrix(inputs[l]).transposed(), matrix(d_inner), layer.d_up);
    gemm(device_.stream(), matrix(d_inner), matrix(layer.up).transposed(), matrix(d_y), 1, 1);
    inputs.pop_back();
  }
}

void RecomputedChain::forward_half(const Layer& layer, const Tensor& x, const Tensor& inner,
                                   const Tensor& active) const {
  gemm(device_.stream(), matrix(x), matrix(layer.up), matrix(inner));
  device_.stream().kernels().gelu(inner, active);
}

Tensor RecomputedChain::checkpoint() {
  const machine::Shape shape{shape_.tokens, shape_.hidden};
  return checkpoints_ ? checkpoints_->take(shape) : allocate(shape, Category::activations);
}

void RecomputedChain::add_product(const machine::Matrix& a, const machine::Matrix& b,
                                  Tensor& gradient) {
  const bool first = !gradient;
  const machine::Shape shape{a.rows, b.cols};
  if (first) gradient = gradients_ ? gradients_->take(shape) : allocate(shape, Category::gradients);
  gemm(device_.stream(), a, b, matrix(gradient), 1, first ? 0.0F : 1.0F);
}

Tensor RecomputedChain::temporary(int columns) const {
  return allocate({shape_.tokens, columns}, Category::buffers);
}

Tensor RecomputedChain::allocate(machine::Shape shape, Category category) const {
  if (before_allocation_) before_allocation_(category);
  return Tensor(device_, Dtype::float32, shape, category);
}

std::uint64_t RecomputedChain::hash_of_gradients() const {
  std::uint64_t all = 0;
  for (const Layer& layer : layers_)
    for (const Tensor& gradient : {layer.d_up, layer.d_down})
      all = all * 0x100000001b3u + hash(gradient);
  return all;
}

std::vector<double> RecomputedChain::gradients() const {
  std::vector<double> all;
  for (const Layer& layer : layers_)
    for (const Tensor& gradient : {layer.d_up, layer.d_down}) append(all, gradient);
  return all;
}

}  // namespace suite
