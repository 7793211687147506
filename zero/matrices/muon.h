#pragma once
// Muon (Jordan et al. 2024; over many ranks Liu et al. 2025, arXiv:2502.16982): the momentum of a
// matrix, orthogonalized, is its step. AdamW updates all parameters that the plan does not name as
// matrices: embeddings, the output layer, biases and gains.
//   m = momentum m + (1 - momentum) g, d = m (nesterov: momentum m + (1 - momentum) g)
//   w <- (1 - rate weight_decay) w - rate scale O(d)
// O is Newton-Schulz (newton_schulz.h), and scale a function of the whole matrix (muon_scale.h).
// A matrix keeps one moment, so it has 4 bytes an element less than with AdamW.
//
// Matrices have their own buckets, so every shard of a bucket has one rule. The direction d takes
// the place of the gradient. With shards a bucket's directions are gathered over dp into a buffer,
// and a rank orthogonalizes the matrices of which it owns a part, as DeepSpeed does. A matrix on
// the border of two shards is computed twice. All buckets are gathered before any is published,
// because a group runs one collective at a time. Without shards every rank of dp computes all.

#include <optional>

#include "zero/matrices/matrix_context.h"
#include "zero/matrices/newton_schulz.h"
#include "zero/offload/owned_optimizer.h"

namespace zero {

// Throws std::invalid_argument for options that Muon does not support.
void check_muon(const Rule& rule, const MatrixLimits& limits);

// One of the matrices that a parameter has: its rows on this rank, and whether A = X Xᵀ.
struct MuonPart {
  std::int64_t first = 0, rows = 0, columns = 0;  // first: row of each period
  bool from_left = true;
  std::int64_t elements() const { return rows * columns; }
  std::int64_t square_rows() const { return from_left ? rows : columns; }
};
std::vector<MuonPart> muon_parts(const GradientRow& row, int tp);
// Returns whether a rank of dp orthogonalizes the parameter: it owns an element or nothing is
// sharded.
bool orthogonalizes(const GradientPlan& plan, const Layout& layout, int row, bool sharded,
                    int dp_rank);

MatrixBytes muon_bytes(const GradientPlan& plan, const Layout& layout, bool sharded);

class MuonOptimizer final : public OwnedOptimizer {
 public:
  MuonOptimizer(const Rule& rule, MatrixContext context, const std::vector<OwnedRange>& owned);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void values_changed() override;
  void set_steps(std::int64_t steps) override;
  void visit(bool writes, const Visit& call) override;

 private:
  // The elements of one bucket in an owned range.
  struct Run {
    Range range;
    std::size_t owned = 0;
    std::int64_t first = 0;  // element of the owned range
    std::size_t bucket = 0;
    RangeStates states;              // of matrices
    std::optional<Optimizer> adamw;  // of other parameters
  };
  const Muon& muon() const { return std::get<Muon>(rule_); }
  // Replaces the gradient by the direction.
  void direct(const Run& run, const Tensor& gradient, double gradient_scale) const;
  // Replaces the directions of whole parameters by their scaled steps.
  void orthogonalize(const Run& run, const Tensor& direction);
  void orthogonalize(const GradientRow& row, const Tensor& direction);
  void move(const Run& run, const Tensor& step) const;

  const MatrixContext context_;
  std::size_t num_owned_;
  std::vector<Run> runs_;
  Tensor gathered_;  // the directions of a bucket
  Tensor part_;      // a matrix
  Tensor squares_, all_squares_;
  NewtonSchulz newton_schulz_;
};

}  // namespace zero
