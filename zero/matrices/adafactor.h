#pragma once
// Adafactor (Shazeer and Stern 2018, arXiv:1804.04235, Algorithm 4) with a given learning rate, no
// momentum and the decay of AdamW. The second moments of a matrix [R, C] are the product of the
// means of its rows and columns, so it keeps R + C numbers in place of R C:
//   b = 1 - t^-decay_rate
//   r = b r + (1 - b) row means of g², c the same of columns, m of all elements
//   u = g / (sqrt(r cᵀ / m) + 1e-15), w <- (1 - rate weight_decay) w - rate u / max(1, RMS(u) / d)
// Other parameters keep one moment an element. RMS is of a whole parameter (parameter_norms.h).
// The paper adds 1e-30 to squares; here its root is added to the root.
//
// Matrices have their own buckets, so every shard of a bucket keeps the same states. Means are sums
// over the pieces that the ranks of dp own and the parts of tp. One vector has those of all
// matrices; every rank keeps all of it. An update takes the place of its gradient.

#include "zero/matrices/matrix_context.h"
#include "zero/offload/owned_optimizer.h"
#include "zero/optimizers/parameter_norms.h"

namespace zero {

// Throws std::invalid_argument for options that Adafactor does not support.
void check_adafactor(const Rule& rule, const MatrixLimits& limits);

// The places of the means of a matrix in the vector.
struct FactoredRow {
  int row = 0;                                                        // of the plan
  std::int64_t rows = 0, columns = 0, all_rows = 0, all_columns = 0;  // here, and of all of tp
  std::int64_t of_rows = 0, of_columns = 0, of_all = 0;
};
// The vector begins with the means that tp sums. Both parts have the size of equal shares.
struct Factors {
  std::vector<FactoredRow> matrices;
  std::int64_t summed_over_tp = 0, elements = 0;
};
Factors factors(const GradientPlan& plan, const Layout& layout);

MatrixBytes adafactor_bytes(const GradientPlan& plan, const Layout& layout, bool sharded);

class AdafactorOptimizer final : public OwnedOptimizer {
 public:
  AdafactorOptimizer(const Rule& rule, MatrixContext context, const std::vector<OwnedRange>& owned);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void values_changed() override;
  // Not the means of rows and columns.
  void visit(bool writes, const Visit& call) override;
  const Factors& factors() const { return factors_; }
  const Tensor& means() const { return means_; }  // for checkpoints

 private:
  // The part of a parameter in an owned range.
  struct Piece {
    std::size_t owned = 0, norm = 0;        // norm: of norms_.pieces()
    std::int64_t first = 0;                 // element of the owned range
    const FactoredRow* factored = nullptr;  // null: second_moment has an element for each
    std::int64_t in_row = 0;                // element of the parameter
    Tensor master, second_moment;
  };
  struct Owned {
    Range range;
    RangeStates states;
  };
  // The rows of a matrix that a piece touches.
  struct Touched {
    std::int64_t first = 0, rows = 0, skipped = 0;  // skipped: elements before the piece
  };
  static Touched touched(const Piece& piece, std::int64_t size);
  void add_squares(const Piece& piece, const Tensor& gradient, double gradient_scale);
  void sum_squares(double decay);
  void direct(const Piece& piece, const Tensor& gradient, double gradient_scale, double decay);
  // Returns u of the elements in the scratch, with these second moments.
  Tensor quotient(const Tensor& gradient, double gradient_scale, double decay,
                  const Tensor& second_moment);

  const MatrixContext context_;
  Factors factors_;
  ParameterNorms norms_;
  std::vector<Owned> owned_;
  std::vector<Piece> pieces_;
  Tensor means_, sums_;                         // of all matrices: of the past and of this step
  Tensor squares_, scratch_, weights_, ratio_;  // of one piece
};

}  // namespace zero
