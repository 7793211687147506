#pragma once
// A linear layer split along its input (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Its
// input is the output of a column-parallel layer.
//
//   y [tokens, out] = all_reduce(x [tokens, in/tp] Wᵀ) + b,   W [out, in/tp], b [out]
//
// The bias is replicated and added once, after the reduction. If each rank added it before, it
// would count tp times.
//
// Communication: forward all-reduces y [tokens, out] over tp; backward sends no data. With sequence
// parallelism y and d_y hold this rank's own rows: forward reduce-scatters y, backward_input
// gathers d_y, and the bias's gradient is partial, because each rank adds only its own rows.
// backward_weights adds to the gradients (float under bfloat16 and half). With context.fp8 the
// products and the gathers are in 8 bits (fp8/fp8_products.h). A gathered d_y is then in codes, so
// backward_input adds the bias's gradient.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"
#include "machine/device/gemm.h"

namespace layers {

class Fp8Products;

// Megatron-LM's arguments of the same names.
struct RowOptions {
  bool bias = true;
  // If false, x and d_x are [tokens, in], the same on every rank. Each rank multiplies its own
  // columns, and backward_input all-gathers d_x. Does not support sequence parallelism.
  bool input_is_parallel = true;
  bool skip_bias_add = false;  // as in ColumnOptions
};

class RowParallelLinear {
 public:
  // Throws std::invalid_argument that names the parameter if tp does not divide in, or the options
  // that exclude each other.
  RowParallelLinear(const Context& context, const std::string& name, std::int64_t in,
                    std::int64_t out, const RowOptions& options = {});

  void forward(const Tensor& x, const Tensor& y);
  // Returns d_y of all rows for backward_weights; if it was gathered, in memory of category `kept`.
  Tensor backward_input(const Tensor& d_y, const Tensor& d_x, Category kept = Category::buffers);
  void backward_weights(const Tensor& x, const Tensor& all_d_y);

  Parameters parameters();

 private:
  bool scatters() const { return !options_.input_is_parallel && context_.tp.size() > 1; }
  bool gathers_codes() const { return fp8_ && context_.sequence_parallel; }
  Matrix own_columns(const Tensor& x) const;

  Context context_;
  std::int64_t in_;
  RowOptions options_;
  Parameter weight_, bias_;           // the bias is declared even without options.bias
  std::shared_ptr<Fp8Products> fp8_;  // null unless context.fp8 is on
  // Sums of the columns of d_y, by the gathered codes that stand for it in backward_weights. Only
  // there gradients may be written.
  std::map<const void*, Tensor> bias_sums_;
};

}  // namespace layers
