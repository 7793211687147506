#pragma once
// A linear layer cut along its input (Shoeybi et al. 2019, arXiv:1909.08053, section 3): takes what
// a column-parallel layer leaves on each rank.
//
//   y [tokens, out] = all_reduce(x [tokens, in/tp] Wᵀ) + b,   W [out, in/tp], b [out]
//
// The bias is replicated and added once, after the reduction: added on each rank before, it would
// count tp times.
//
// Communication: forward all-reduces y [tokens, out] over tp; backward none. With sequence
// parallelism y and d_y are of this rank's own rows: forward reduce-scatters y, backward_input
// gathers d_y, and each rank has the part of the bias's gradient that its rows make.
// backward_weights adds to the gradients (float under bfloat16 and half).

#include <cstdint>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"
#include "machine/device/gemm.h"

namespace layers {

// Megatron-LM's arguments of the same names.
struct RowOptions {
  bool bias = true;
  // If not, x and d_x are [tokens, in], the same on every rank: each multiplies its own columns,
  // and backward_input all-gathers d_x. Not with sequence parallelism.
  bool input_is_parallel = true;
  bool skip_bias_add = false;  // as in ColumnOptions
};

class RowParallelLinear {
 public:
  // Throws std::invalid_argument naming the parameter when tp does not divide in, or the options
  // that exclude each other.
  RowParallelLinear(const Context& context, const std::string& name, std::int64_t in,
                    std::int64_t out, const RowOptions& options = {});

  void forward(const machine::Tensor& x, const machine::Tensor& y);
  // Returns d_y of all rows, taken under `kept` where it had to be gathered: for backward_weights.
  machine::Tensor backward_input(const machine::Tensor& d_y, const machine::Tensor& d_x,
                                 machine::Category kept = machine::Category::buffers);
  void backward_weights(const machine::Tensor& x, const machine::Tensor& all_d_y);

  void initialize(const Initializer& initializer);  // weights of residual_stddev
  Parameters parameters();
  collectives::Parameter& weight() { return weight_; }
  collectives::Parameter& bias() { return bias_; }  // declared even where there is none

 private:
  bool scatters() const { return !options_.input_is_parallel && context_.tp.size() > 1; }
  machine::Matrix own_columns(const machine::Tensor& x) const;

  Context context_;
  std::int64_t in_;
  RowOptions options_;
  collectives::Parameter weight_, bias_;
};

}  // namespace layers
