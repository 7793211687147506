#pragma once
// 1-bit LAMB (Li et al. 2021, arXiv:2104.06069, Algorithm 1), in ZeRO stage 0 as in DeepSpeed. For
// each parameter with values w and update u = m / (sqrt(v) + epsilon) + weight_decay w:
//
//   warm-up   freeze_step updates w -= learning_rate r u of LAMB without correction of the bias: r
//             is |w| / |u| between min_coeff and max_coeff, or 1 if a norm is 0. c is the moving
//             average, with coeff_beta and from 0, of the ratios other than 1
//   then      v is constant, and momenta m are summed (one_bit_momenta.h). Before its code a
//             parameter's momentum is multiplied by a constant and afterwards divided, so that all
//             parameters of a segment have one root of the mean square, their mean at the freeze
//             (DeepSpeed: of all parameters of a rank). The sum implies a mean gradient,
//             (m - beta1 last m) / (1 - beta1), of which f is Adam's variance, from v on
//   update    w -= learning_rate c factor u. factor is the largest (sqrt(v) + epsilon) / (sqrt(f) +
//             epsilon) of the parameter, weighted by the part of u that is not decay, at least
//             factor_min, at most factor_max, and changes by at most factor_threshold of itself in
//             a step
//
// Norms and largest quotients are those of whole parameters (optimizers/parameter_norms.h). f is a
// third state of each element. The largest quotients are computed on the host. A checkpoint has f,
// and c, the last factor and the constant of each parameter (Ratios).

#include "zero/one_bit/one_bit_momenta.h"
#include "zero/optimizers/parameter_norms.h"

namespace zero {

struct OneBitLambBytes {
  std::size_t states = 0, buffers = 0;  // in addition to KeptStates, and to those of momenta
};
OneBitLambBytes one_bit_lamb_bytes(const GradientPlan& plan, const Layout& layout);
// Returns the doubles that a rank of tp sends for the largest quotients of its parameters.
std::int64_t one_bit_quotients(const GradientPlan& plan);

// Returns the next factor of a parameter. part: |u without decay| / |u|.
double next_factor(const OneBitLamb& lamb, double largest_quotient, double part, double last);

class OneBitLambOptimizer final : public OneBitOptimizer {
 public:
  OneBitLambOptimizer(const Rule& rule, MatrixContext context, const OwnedRange& owned,
                      CompressionWatch* watch);

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;
  void set_steps(std::int64_t steps) override;

  // The numbers of a parameter: c, the last factor, and the constant of its momenta, 0 in the
  // warm-up. Equal on all ranks that hold it.
  struct Ratios {
    double coefficient = 0, last_factor = 1, scaling = 0;
  };
  std::vector<Ratios>& ratios() { return rows_; }  // of the rows of the plan; for checkpoints

 private:
  const OneBitLamb& lamb() const { return std::get<OneBitLamb>(rule_); }
  double decay_of(std::size_t row) const {
    return context_.plan.rows[row].weight_decay ? lamb().weight_decay : 0;
  }
  void square(const Tensor& tensor, ParameterNorms::Of of) const;
  void freeze();
  void warm_up(const Tensor& gradient, double gradient_scale);
  void step_frozen(const Tensor& gradient, double gradient_scale);
  // Collective over tp. Returns the largest quotient of each row.
  std::vector<double> largest_quotients();
  // w += rate ratio scratch.
  void move(std::size_t row, double ratio) const;

  ParameterNorms norms_;
  std::vector<Ratios> rows_;          // of the plan
  Tensor scratch_;                    // of all elements: the last momentum, then minus the update
  Tensor quotients_, all_quotients_;  // double
};

}  // namespace zero
