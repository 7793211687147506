#pragma once
// The smallest training step that uses memory as activation checkpointing does: a chain of layers y
// = x + gelu(x W1) W2. Forward keeps the inputs, backward recomputes all other tensors (Chen et al.
// 2016, arXiv:1604.06174), and gradients are summed over micro-batches. Checkpoints and gradients
// are long-lived. All other tensors are allocated between them and are short-lived.
//
// Each tensor is a separate allocation when it is produced, or is in a preallocated arena
// (machine/device/arena/contiguous_arena.h). The arithmetic is the same.
//
// x [tokens, hidden], W1 [hidden, inner], W2 [inner, hidden], all float. M, F and G are the bytes
// of x, of x W1 and of a matrix. L layers need, with and without arenas, at most
//   parameters 2 L G,  gradients 2 L G,  activations L M,  buffers M + 3 F
// From the second micro-batch on, all these bytes are live at once.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "machine/device/arena/contiguous_arena.h"
#include "machine/device/gemm.h"
#include "machine/device/kernels.h"
#include "suite/reference/unit.h"
#include "suite/reference/whole_values.h"

namespace suite {

struct ChainShape {
  int layers = 1, tokens = 1, hidden = 1, inner = 1, micro_batches = 2;

  std::map<Category, std::size_t> peaks() const {
    const auto bytes = [](int rows, int cols) {
      return 4 * static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
    };
    const auto L = static_cast<std::size_t>(layers);
    return {{Category::parameters, 2 * L * bytes(hidden, inner)},
            {Category::gradients, 2 * L * bytes(hidden, inner)},
            {Category::activations, L * bytes(tokens, hidden)},
            {Category::buffers, bytes(tokens, hidden) + 3 * bytes(tokens, inner)}};
  }
  // Returns the sum of the peaks.
  std::size_t live_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [category, peak] : peaks()) bytes += peak;
    return bytes;
  }
  // Returns the operations of a step's products: two forward, one recomputed and four backward per
  // layer.
  double flops() const { return 7.0 * 2 * tokens * hidden * inner * layers * micro_batches; }
};

class RecomputedChain {
 public:
  // Allocates the matrices and the arenas. Calls before_allocation with the category of each
  // allocation.
  RecomputedChain(const ChainShape& shape, machine::Device& device, bool arenas, std::uint64_t seed,
                  std::function<void(Category)> before_allocation)
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
        kernels().fill_normal(weight, ++key, {}, 0, 0.02);
    }
    if (!arenas) return;
    const std::int64_t layers = shape.layers;
    const auto arena = [&](std::int64_t elements, Category category) {
      before_allocation_(category);
      return machine::ContiguousArena(device, Dtype::float32, elements, category);
    };
    checkpoints_ = arena(layers * shape.tokens * shape.hidden, Category::activations);
    gradients_ = arena(2 * layers * up.size(), Category::gradients);
  }

  // Drops the gradients of the last step and runs all micro-batches.
  void step() {
    for (Layer& layer : layers_) layer.d_up = layer.d_down = Tensor();
    if (gradients_) gradients_->clear();
    for (int i = 0; i < shape_.micro_batches; ++i) micro_batch(i);
  }
  std::uint64_t hash_of_gradients() const {
    std::uint64_t all = 0;
    for (const Layer& layer : layers_)
      for (const Tensor& gradient : {layer.d_up, layer.d_down})
        all = all * 0x100000001b3u + hash(gradient);
    return all;
  }
  std::vector<double> gradients() const {
    std::vector<double> all;
    for (const Layer& layer : layers_)
      for (const Tensor& gradient : {layer.d_up, layer.d_down}) append(all, gradient);
    return all;
  }

 private:
  struct Layer {
    Tensor up, down;      // W1, W2
    Tensor d_up, d_down;  // empty before the first micro-batch
  };

  machine::Kernels& kernels() const { return device_.stream().kernels(); }

  void micro_batch(int index) {
    using machine::matrix;
    if (checkpoints_) checkpoints_->clear();
    std::vector<Tensor> inputs{checkpoint()};
    kernels().fill_normal(inputs[0], seed_ - 1 - static_cast<std::uint64_t>(index), {}, 0, 1);
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
      kernels().gelu_backward(inner, d_active, d_inner);
      inner = d_active = Tensor();
      add_product(matrix(inputs[l]).transposed(), matrix(d_inner), layer.d_up);
      gemm(device_.stream(), matrix(d_inner), matrix(layer.up).transposed(), matrix(d_y), 1, 1);
      inputs.pop_back();
    }
  }

  void forward_half(const Layer& layer, const Tensor& x, const Tensor& inner,
                    const Tensor& active) const {
    gemm(device_.stream(), matrix(x), matrix(layer.up), matrix(inner));
    kernels().gelu(inner, active);
  }
  // Computes gradient += a b, or gradient = a b if it is empty.
  void add_product(const machine::Matrix& a, const machine::Matrix& b, Tensor& gradient) {
    const bool first = !gradient;
    if (first) gradient = take(gradients_, {a.rows, b.cols}, Category::gradients);
    gemm(device_.stream(), a, b, matrix(gradient), 1, first ? 0.0F : 1.0F);
  }

  Tensor checkpoint() {
    return take(checkpoints_, {shape_.tokens, shape_.hidden}, Category::activations);
  }
  Tensor take(std::optional<machine::ContiguousArena>& arena, machine::Shape shape,
              Category category) const {
    return arena ? arena->take(shape) : allocate(shape, category);
  }
  Tensor temporary(int columns) const {
    return allocate({shape_.tokens, columns}, Category::buffers);
  }
  Tensor allocate(machine::Shape shape, Category category) const {
    before_allocation_(category);
    return Tensor(device_, Dtype::float32, shape, category);
  }

  const ChainShape shape_;
  machine::Device& device_;
  const std::uint64_t seed_;
  const std::function<void(Category)> before_allocation_;
  std::vector<Layer> layers_;
  std::optional<machine::ContiguousArena> checkpoints_, gradients_;
};

}  // namespace suite
