#pragma once
// A linear layer split along its output (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
//
//   y [tokens, out/tp] = x [tokens, in] Wᵀ + b,   W [out/tp, in], b [out/tp]
//
// Each rank computes whole outputs, so an element-wise non-linearity can follow without any
// communication: GELU(X [A1, A2]) = [GELU(X A1), GELU(X A2)]. A split along the input needs the sum
// first: GELU(X1 A1 + X2 A2).
//
// Communication: forward sends no data; backward_input all-reduces d_x [tokens, in] over tp. With
// sequence parallelism x and d_x hold this rank's own rows: forward gathers x, backward_input
// reduce-scatters d_x, and backward_weights gathers x again, so that only 1/tp of it is kept.
// backward_weights adds to the gradients (float under bfloat16 and half). With context.fp8 the
// products and the gathers are in 8 bits (fp8/fp8_products.h), without overlap of tp.

#include <cstdint>
#include <memory>
#include <string>

#include "layers/context.h"
#include "layers/parameter.h"
#include "machine/device/gemm.h"

namespace layers {

class Fp8Products;

// Megatron-LM's arguments of the same names, and `stacked`.
struct ColumnOptions {
  bool bias = true;
  // Number of matrices [out, in] in one product: y is [tokens, stacked * out/tp], this rank's
  // columns of the first matrix, then the same columns of the second. The weight is declared
  // [stacked, out * in] and split along the second extent, so that its global values are the same
  // at every degree.
  int stacked = 1;
  // y and d_y are [tokens, out] on every rank: forward all-gathers y. Does not support sequence
  // parallelism or stacked matrices.
  bool gather_output = false;
  // The caller adds the bias, for example in another kernel. Its gradient is still the sum of d_y.
  bool skip_bias_add = false;
};

class ColumnParallelLinear {
 public:
  // Throws std::invalid_argument that names the parameter if tp does not divide out, or the options
  // that exclude each other.
  ColumnParallelLinear(const Context& context, const std::string& name, std::int64_t in,
                       std::int64_t out, const ColumnOptions& options = {});

  // active: also gelu(y); does not support gather_output. With context.fused_epilogues, bias and
  // GELU are part of the product if the device's library supports it.
  void forward(const Tensor& x, const Tensor& y, const Tensor& active = {});
  // kept: the category of memory that backward_weights needs (a scale in 8 bits).
  void backward_input(const Tensor& d_y, const Tensor& d_x, Category kept = Category::buffers);
  void backward_weights(const Tensor& x, const Tensor& d_y);
  // Runs both halves. With context.overlap the input is gathered during the product of d_x, and d_x
  // is reduced during the product of the weights' gradient.
  void backward(const Tensor& x, const Tensor& d_y, const Tensor& d_x);

  Parameters parameters();

 private:
  // y, and gelu(y) if active, of some rows inside of the region.
  void multiply(const Tensor& x, const Tensor& y, const Tensor& active) const;
  void multiply_gradient(const Tensor& d_y, const Tensor& d_x) const;
  void finish(const Tensor& y, const Tensor& active) const;  // adds the bias, computes gelu(y)
  void add_gradients(const Tensor& all_x, const Tensor& d_y);
  void add_bias_gradient(const Tensor& d_y) const;
  bool gathers() const { return options_.gather_output && context_.tp.size() > 1; }
  Tensor weight_matrix(const Tensor& tensor) const;  // [stacked * out/tp, in]
  Matrix weight_of(const Tensor& tensor) const;
  Tensor bias_of(const Tensor& tensor) const;  // [stacked * out/tp]
  Matrix own_columns(const Tensor& y) const;

  Context context_;
  std::int64_t in_, out_;
  ColumnOptions options_;
  Parameter weight_, bias_;           // the bias is declared even without options.bias
  std::shared_ptr<Fp8Products> fp8_;  // null unless context.fp8 is on
};

}  // namespace layers
