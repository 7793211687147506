#pragma once
// The smallest training step that uses memory as activation checkpointing does: a chain of layers
// y = x + gelu(x W1) W2. Forward keeps the inputs, backward recomputes everything else (Chen et al.
// 2016, arXiv:1604.06174), and gradients are summed over micro-batches. Checkpoints and gradients
// live long, all other tensors live shortly between them.
//
// Each is a separate allocation, made when it is produced, or is in an arena that was allocated
// before (machine/device/arena/contiguous_arena.h). The arithmetic is the same.
//
// x [tokens, hidden], W1 [hidden, inner], W2 [inner, hidden], all float. With M, F and G the bytes
// of x, of x W1 and of a matrix, and L layers, there live at the most, either way,
//   parameters 2 L G,  gradients 2 L G,  activations L M,  buffers M + 3 F
// and, from the second micro-batch on, all of it at once.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "machine/device/arena/contiguous_arena.h"
#include "machine/device/gemm.h"

namespace suite {

struct ChainShape {
  int layers = 1, tokens = 1, hidden = 1, inner = 1, micro_batches = 2;

  std::size_t x_bytes() const { return 4 * of(tokens, hidden); }
  std::size_t inner_bytes() const { return 4 * of(tokens, inner); }
  std::size_t matrix_bytes() const { return 4 * of(hidden, inner); }
  std::map<machine::Category, std::size_t> peaks() const;
  std::size_t live_bytes() const;  // the sum of the peaks
  double flops() const;            // of a step

 private:
  static std::size_t of(int rows, int cols) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
  }
};

class RecomputedChain {
 public:
  // Allocates the matrices and the arenas. Calls before_allocation with the category of each.
  using Told = std::function<void(machine::Category)>;
  RecomputedChain(const ChainShape& shape, machine::Device& device, bool arenas, std::uint64_t seed,
                  Told before_allocation = {});

  // Drops the gradients of the last step and runs all micro-batches.
  void step();
  std::uint64_t hash_of_gradients() const;
  std::vector<double> gradients() const;

 private:
  struct Layer {
    machine::Tensor up, down;      // W1, W2
    machine::Tensor d_up, d_down;  // empty before the first micro-batch
  };
  void micro_batch(int index);
  void forward_half(const Layer& layer, const machine::Tensor& x, const machine::Tensor& inner,
                    const machine::Tensor& active) const;
  machine::Tensor allocate(machine::Shape shape, machine::Category category) const;
  machine::Tensor temporary(int columns) const;
  machine::Tensor checkpoint();
  // gradient += a b, or gradient = a b if it is empty.
  void add_product(const machine::Matrix& a, const machine::Matrix& b, machine::Tensor& gradient);

  const ChainShape shape_;
  machine::Device& device_;
  const std::uint64_t seed_;
  const Told before_allocation_;
  std::vector<Layer> layers_;
  std::optional<machine::ContiguousArena> checkpoints_, gradients_;
};

}  // namespace suite
