#pragma once
// The perceptrons of a rank's experts, over rows that are grouped by expert:
//
//   out_i [rows_i, hidden] = gelu(x_i W1_iᵀ + b1_i) W2_iᵀ + b2_i
//
// With swiglu silu(x Wgᵀ) * x Wuᵀ is the input of W2, without biases if config.bias is off. Expert
// tensor parallelism splits each expert as layers/mlp.h does: W1 [ffn/etp, hidden], W2 [hidden,
// ffn/etp]. `out` is then this rank's term of the sum over etp, and only the first rank's term has
// b2. The caller adds the terms.
//
// Parameters are those of single experts, "NAME.EXPERT.fc1.weight" with the expert's global index,
// so their initial values do not depend on the degrees. Their placements have the part. No call
// communicates.

#include <cstdint>
#include <string>
#include <vector>

#include "layers/context.h"
#include "layers/moe_config.h"
#include "layers/parameter.h"

namespace layers {

// The experts of a rank, [first, first + count), and its part of each.
struct HeldExperts {
  int first = 0, count = 1;
  int etp = 1, etp_rank = 0;
};

class ExpertMlps {
 public:
  struct Saved {
    std::vector<std::int64_t> rows;  // of each expert
    Tensor x, inner, active;         // x and d_out are the caller's
    Tensor d_out, d_inner;
  };

  // context: device, dtype.
  ExpertMlps(const Context& context, const std::string& name, const MoeConfig& config,
             const HeldExperts& held);

  // saved.rows and saved.x are set.
  void forward(const Tensor& out, Saved& saved, Category kept);
  // Frees inner and adds d_inner.
  void backward_input(const Tensor& d_out, const Tensor& d_x, Saved& saved, Category kept);
  void backward_weights(Saved& saved);  // leaves saved empty

  Parameters parameters();

 private:
  struct Expert {
    Parameter weight1, bias1, weight2, bias2;
  };
  Matrix half(const Tensor& inner, int which) const;                    // 0: gate, 1: up
  std::vector<Matrix> first_weights(Tensor Parameter::*tensor) const;   // [inner/etp, hidden]
  std::vector<Matrix> second_weights(Tensor Parameter::*tensor) const;  // [hidden, ffn/etp]
  void add_biases(Parameter Expert::*bias, const Tensor& rows, const Saved& saved) const;
  void sum_bias_gradients(Parameter Expert::*bias, const Tensor& d_rows, const Saved& saved) const;

  Context context_;
  MoeConfig config_;
  HeldExperts held_;
  std::int64_t width_;  // of this rank: ffn/etp
  std::vector<Expert> experts_;
};

}  // namespace layers
