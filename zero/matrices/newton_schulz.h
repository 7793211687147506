#pragma once
// Newton-Schulz iteration, which makes the singular values of a matrix nearly equal (Jordan et al.
// 2024, "Muon: An optimizer for hidden layers in neural networks"; Bernstein and Newhouse 2024,
// arXiv:2409.20325):
//   X = M / |M| with the Frobenius norm; then in each step
//   A = X Xᵀ, X <- a X + (b A + c A A) X
// So a singular value s becomes a s + b s^3 + c s^5. The coefficients make it grow fast near 0 and
// stay near 1: after five steps a value above 0.01 |M| is in [0.68, 1.14] with `simple` and in
// [0.97, 1.04] with `quintic`. It does not converge to 1. The products are in the dtype of the
// matrix (float, or double under double).
//
// If tp shards the rows, A = Xᵀ X is the sum of the shards' Xᵀ X, and X <- a X + X (b A + c A A).
// If it shards the columns, A = X Xᵀ is the sum of the shards' X Xᵀ. So a rank keeps its shard and
// sends only A (Megatron-LM's muon-tp-mode distributed). Without tp, A is the smaller of the two.

#include <cstdint>
#include <string_view>

#include "collectives/communicator/communicator.h"
#include "machine/device/tensor.h"
#include "zero/optimizers/muon_scale.h"

namespace zero {

struct Quintic {
  float a = 0, b = 0, c = 0;
};
// Returns the coefficients of a step, counted from 0. They repeat after the last one.
Quintic quintic(NewtonSchulzType type, int step);

// Returns the elements that ranks of tp sum for A of so many rows: padded, so that they split
// evenly (states/layout.h).
std::int64_t square_elements(std::int64_t rows, int tp);

class NewtonSchulz {
 public:
  // Allocates memory for matrices of at most most_elements elements, and for A of at most most_rows
  // rows.
  NewtonSchulz(machine::Device& device, machine::Dtype dtype, std::int64_t most_elements,
               std::int64_t most_rows, int tp);
  static std::size_t bytes(machine::Dtype dtype, std::int64_t most_elements, std::int64_t most_rows,
                           int tp);

  // Orthogonalizes x [rows, columns] in place. norm: of the whole matrix; a matrix of zeros stays.
  // from_left: A = X Xᵀ. tp: sums A over the ranks that hold the other shards; null: x is whole.
  void run(const machine::Tensor& x, double norm, NewtonSchulzType type, int steps, bool from_left,
           collectives::Communicator* tp, std::string_view all_reduce);

 private:
  machine::Device& device_;
  machine::Tensor other_, square_, polynomial_;
};

}  // namespace zero
