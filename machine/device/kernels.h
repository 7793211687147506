#pragma once
// The kernels of the training step, one interface for both devices. Obtain them from a stream:
// stream.kernels().gelu(x, y). The tensors of a call are on the stream's device. Unless a comment
// says otherwise, they share one dtype, which is float, bfloat16, half or double. Other dtypes
// throw std::logic_error. Sums accumulate in float (double for double), in an order that only the
// shapes determine, so equal inputs give equal bits. Matrices are [rows, cols]; leading extents
// fold into rows. Sizes that disagree throw std::logic_error.

#include <cstdint>
#include <span>
#include <string>

#include "machine/device/flash_attention.h"
#include "machine/device/gemm.h"
#include "machine/device/pattern.h"
#include "machine/device/reduction.h"
#include "machine/device/tensor.h"

namespace machine {

// The position of a shard [rows, cols] in its global matrix [*, global_cols]. It is the key of
// random values, so they do not depend on the sharding. global_cols 0 means the shard's own cols.
struct Region {
  std::int64_t row = 0, col = 0, global_cols = 0;
};

// SGD with momentum: velocity = momentum velocity + g, weight -= learning_rate velocity (Polyak
// 1964, doi:10.1016/0041-5553(64)90137-5, in the form used for networks). In Momentum, RmsProp and
// Adam, g is the gradient plus weight_decay weight.
struct Momentum {
  double learning_rate = 1e-2, momentum = 0.9, weight_decay = 0;
};
// square = smoothing square + (1 - smoothing) g^2, weight -= learning_rate g / (sqrt(square) +
// epsilon) (Tieleman and Hinton 2012, lecture 6.5 of "Neural networks for machine learning").
struct RmsProp {
  double learning_rate = 1e-2, smoothing = 0.99, epsilon = 1e-8, weight_decay = 0;
};
// Kingma and Ba 2015, arXiv:1412.6980.
struct Adam {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
// The decay is not part of the gradient (Loshchilov and Hutter 2019, arXiv:1711.05101).
struct AdamW {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};
// moved = beta1 first + (1 - beta1) g, weight -= learning_rate (sign(moved) + weight_decay weight),
// first = beta2 first + (1 - beta2) g (Chen et al. 2023, arXiv:2302.06675, algorithm 2).
struct Lion {
  double learning_rate = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
};

// The keys that a query sees. Matrix i of the scores belongs to sequence i / matrices % sequences.
struct SoftmaxMask {
  bool causal = true;                     // the keys up to the query's own index
  const std::int32_t* lengths = nullptr;  // [sequences], on the device: the first keys; null: all
  std::int64_t sequences = 1, matrices = 1;
};

struct Rotary {
  double base = 10000;
  std::int64_t first_position = 0;  // of row 0
  std::int64_t step = 1;            // between the positions of two rows
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // ---- data; fill, cast, reduce and divide support every dtype
  virtual void fill(const Tensor& out, double value) = 0;  // rounded as cast does
  // Any dtype to any dtype. To a floating dtype: nearest, ties to even (to bfloat16 and half
  // through float). To an integer: like convert() (dtype.h).
  virtual void cast(const Tensor& in, const Tensor& out) = 0;
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& out) = 0;   // out may be a or b
  virtual void scale(const Tensor& in, double factor, const Tensor& out) = 0;  // out may be in
  // out += in, for gradient accumulation. out may be float if in is narrower.
  virtual void accumulate(const Tensor& in, const Tensor& out) = 0;
  // out[i] = ins[0][i] + ins[1][i] + … (or another Reduction; avg adds) over raw memory, count
  // elements of dtype. It is the reduction of a collective, of two values or more, rounded after
  // each addition, and written to all `outs`. ins and outs may be memory of other ranks that this
  // device can reach. An out may be an in. Integer sums and products wrap around. max and min: if a
  // value is NaN, the result is the quiet NaN, and -0 < +0, so the bits do not depend on the order.
  virtual void reduce_to_all(Reduction reduction, Dtype dtype, std::span<const void* const> ins,
                             std::span<void* const> outs, std::int64_t count,
                             Store store = Store::cached) = 0;
  void reduce(Reduction reduction, Dtype dtype, const void* a, const void* b, void* out,
              std::int64_t count) {
    const void* const ins[] = {a, b};
    reduce_to_all(reduction, dtype, ins, std::span<void* const>(&out, 1), count);
  }
  // data[i] /= divisor, in place over raw memory, divisor >= 1. Turns a sum into avg. Floating
  // types divide and round once. Integers truncate toward zero.
  virtual void divide(Dtype dtype, void* data, std::int64_t count, std::int64_t divisor) = 0;
  // out = sum of squares. out is one double on this device and is overwritten.
  virtual void sum_of_squares(const Tensor& in, const Tensor& out) = 0;

  // ---- random, counter-based (Philox 4x32-10): value = f(seed, global index)
  virtual void fill_normal(const Tensor& out, std::uint64_t seed, Region region, double mean,
                           double stddev) = 0;
  virtual void fill_uniform(const Tensor& out, std::uint64_t seed, Region region, double low,
                            double high) = 0;

  // ---- the numbers with which collectives are checked (pattern.h), of the pattern's dtype
  // out = the rank's input from element `first` on.
  virtual void fill_pattern(const Tensor& out, const Pattern& pattern, int rank,
                            std::int64_t first) = 0;
  // Adds the errors of the part's elements of `output`. errors: the words of a PatternErrors,
  // uint64 on this device. bound: 0, or the largest error of an element that is not wrong.
  virtual void check_pattern(const Tensor& output, const Pattern& pattern, const PatternPart& part,
                             double bound, const Tensor& errors) = 0;

  // ---- linear
  virtual void add_bias(const Tensor& x, const Tensor& bias,
                        const Tensor& out) = 0;  // bias [cols]; out may be x
  // out[j] += sum over rows of x[i, j]; out may be float if x is narrower.
  virtual void accumulate_column_sums(const Tensor& x, const Tensor& out) = 0;

  // ---- GELU, tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  virtual void gelu(const Tensor& x, const Tensor& out) = 0;
  virtual void gelu_backward(const Tensor& x, const Tensor& d_out, const Tensor& d_x) = 0;

  // ---- LayerNorm over cols; mean and reciprocal standard deviation are [rows], float (double)
  virtual void layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon,
                          const Tensor& out, const Tensor& mean, const Tensor& rstd) = 0;
  virtual void layer_norm_backward_input(const Tensor& x, const Tensor& gain, const Tensor& mean,
                                         const Tensor& rstd, const Tensor& d_out,
                                         const Tensor& d_x) = 0;
  // d_gain[j] += ..., d_bias[j] += ...; both may be float if x is narrower.
  virtual void layer_norm_backward_weights(const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                           const Tensor& d_out, const Tensor& d_gain,
                                           const Tensor& d_bias) = 0;

  // ---- attention: scores [matrices, queries, keys] -> probabilities, zero for masked keys
  virtual void softmax(const Tensor& scores, double scale, const SoftmaxMask& mask,
                       const Tensor& probabilities) = 0;
  // d_scores = scale * p * (d_p - sum(d_p * p)), zero for masked keys; d_scores may be d_p.
  virtual void softmax_backward(const Tensor& probabilities, const Tensor& d_probabilities,
                                double scale, const SoftmaxMask& mask, const Tensor& d_scores) = 0;
  // Merges attention over a block of keys into attention over other keys, by the logarithms of
  // their sums of exp (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889):
  //   sum = log(exp(log_sum_exp) + exp(block_log_sum_exp))
  //   out = exp(log_sum_exp - sum) out + exp(block_log_sum_exp - sum) block, log_sum_exp = sum
  // block and out are [queries, head] in batches [sequences, heads], block in a floating dtype, out
  // in float (double for double), as are the two matrices [sequences * heads, queries] of
  // logarithms. All columns are contiguous. A query without keys has minus infinity, and its row of
  // block or out is not read. If both have minus infinity, the row of out is not written.
  virtual void merge_attention(const Matrix& block, const Matrix& block_log_sum_exp,
                               const Matrix& out, const Matrix& log_sum_exp) = 0;

  // ---- embedding; tokens are int32 [rows]. A token outside [first_row, first_row + table rows)
  // belongs to another rank: its row of out is zero, and its gradient is dropped.
  virtual void embedding(const std::int32_t* tokens, const Tensor& table, std::int64_t first_row,
                         const Tensor& out) = 0;
  // d_table[token] += d_out[row] in ascending order of row; d_table may be float if d_out is
  // narrower.
  virtual void embedding_backward(const std::int32_t* tokens, const Tensor& d_out,
                                  std::int64_t first_row, const Tensor& d_table) = 0;

  // ---- vocabulary-parallel cross-entropy over logits [rows, cols], columns [first_col, first_col
  // + cols) of a table padded to a multiple of tp. Columns from `vocabulary` (the size without
  // padding) on are ignored, whatever their values. The three [rows] tensors are float (double for
  // double) and are all-reduced between the calls. A row with a negative target is ignored: its
  // loss and its gradient are zero.
  virtual void row_max(const Tensor& logits, std::int64_t first_col, std::int64_t vocabulary,
                       const Tensor& out) = 0;  // minus infinity if all is padding
  // sum_exp = sum of exp(logit - max); target = target's logit - max if on this rank, else 0.
  virtual void exp_sums(const Tensor& logits, const Tensor& max, const std::int32_t* targets,
                        std::int64_t first_col, std::int64_t vocabulary, const Tensor& sum_exp,
                        const Tensor& target) = 0;
  // loss[row] = log(sum_exp) - target, or 0 for an ignored row.
  virtual void cross_entropy(const Tensor& sum_exp, const Tensor& target,
                             const std::int32_t* targets, const Tensor& loss) = 0;
  // d_logits = factor * (softmax - one_hot(target)), exactly 0 in padding; d_logits may be logits.
  virtual void cross_entropy_backward(const Tensor& logits, const Tensor& max,
                                      const Tensor& sum_exp, const std::int32_t* targets,
                                      std::int64_t first_col, std::int64_t vocabulary,
                                      double factor, const Tensor& d_logits) = 0;
  // out = sum of all elements of in. out is one double on this device and is overwritten.
  virtual void sum(const Tensor& in, const Tensor& out) = 0;

  // ---- optimizers over flat tensors. master and moments are float (double for double). weight
  // receives the rounded master. It may be master itself, else it has the same dtype or one
  // narrower than float. gradient has the master's dtype, or the dtype of narrower weights. It is
  // multiplied by gradient_scale first. step counts from 1.
  virtual void sgd(const Tensor& gradient, double gradient_scale, double learning_rate,
                   const Tensor& master, const Tensor& weight) = 0;
  // weight_decay applies where decay_mask (one byte per element) is non-zero; null: everywhere.
  virtual void momentum(const Tensor& gradient, double gradient_scale, const Momentum& options,
                        const std::uint8_t* decay_mask, const Tensor& master,
                        const Tensor& velocity, const Tensor& weight) = 0;
  virtual void rmsprop(const Tensor& gradient, double gradient_scale, const RmsProp& options,
                       const std::uint8_t* decay_mask, const Tensor& master,
                       const Tensor& second_moment, const Tensor& weight) = 0;
  virtual void adam(const Tensor& gradient, double gradient_scale, const Adam& options,
                    std::int64_t step, const std::uint8_t* decay_mask, const Tensor& master,
                    const Tensor& first_moment, const Tensor& second_moment,
                    const Tensor& weight) = 0;
  virtual void adamw(const Tensor& gradient, double gradient_scale, const AdamW& options,
                     std::int64_t step, const std::uint8_t* decay_mask, const Tensor& master,
                     const Tensor& first_moment, const Tensor& second_moment,
                     const Tensor& weight) = 0;
  virtual void lion(const Tensor& gradient, double gradient_scale, const Lion& options,
                    const std::uint8_t* decay_mask, const Tensor& master,
                    const Tensor& first_moment, const Tensor& weight) = 0;

  // ---- RMSNorm over cols (Zhang and Sennrich 2019, arXiv:1910.07467): out = x rstd gain with
  // rstd = 1 / sqrt(mean(x^2) + epsilon), which is [rows], float (double)
  virtual void rms_norm(const Tensor& x, const Tensor& gain, double epsilon, const Tensor& out,
                        const Tensor& rstd) = 0;
  virtual void rms_norm_backward_input(const Tensor& x, const Tensor& gain, const Tensor& rstd,
                                       const Tensor& d_out, const Tensor& d_x) = 0;
  // d_gain[j] += ...; may be float if x is narrower.
  virtual void rms_norm_backward_weights(const Tensor& x, const Tensor& rstd, const Tensor& d_out,
                                         const Tensor& d_gain) = 0;

  // ---- SwiGLU (Shazeer 2020, arXiv:2002.05202): out = silu(gate) up with silu(x) = x / (1 +
  // e^-x). Matrices of one shape with contiguous columns and without batches. gate and up may
  // therefore be the halves of one product's rows.
  virtual void swiglu(const Matrix& gate, const Matrix& up, const Matrix& out) = 0;
  // d_gate may be gate, d_up may be up.
  virtual void swiglu_backward(const Matrix& gate, const Matrix& up, const Matrix& d_out,
                               const Matrix& d_gate, const Matrix& d_up) = 0;

  // ---- rotary position embedding (Su et al. 2021, arXiv:2104.09864) of heads, a batch [sequences,
  // heads] of matrices [positions, head] with contiguous columns. Halves as in GPT-NeoX: columns i
  // and i + head/2 turn by (first_position + step row) base^(-2i/head). out may be x.
  virtual void rotary(const Matrix& x, const Rotary& options, const Matrix& out) = 0;
  // Applies the inverse rotation.
  virtual void rotary_backward(const Matrix& d_out, const Rotary& options, const Matrix& d_x) = 0;

  // ---- dropout (Srivastava et al. 2014, JMLR 15): out = in / (1 - probability), or 0 if
  // uniform(seed, global index) < probability. So the mask does not depend on the sharding. 0 <=
  // probability < 1. out may be in. The backward pass is dropout of the gradient.
  virtual void dropout(const Tensor& in, double probability, std::uint64_t seed, Region region,
                       const Tensor& out) = 0;

  // ---- for memory_bandwidth: out = in; out = a + factor * b (the STREAM triad)
  virtual void triad(const Tensor& a, const Tensor& b, double factor, const Tensor& out) = 0;

  // ---- called only by gemm (gemm.h), flash_attention and flash_attention_backward
  // (flash_attention.h), which check the arguments
  virtual void do_gemm(const Matrix& a, const Matrix& b, const Matrix& c, float alpha,
                       float beta) = 0;
  // fused_gemm (gemm.h). sums: null, or as many rows as c, one directly after the other.
  virtual bool do_fused_gemm(const Matrix& /*a*/, const Matrix& /*b*/, const Matrix& /*c*/,
                             const void* /*bias*/, void* /*sums*/) {
    return false;
  }
  // why_not_flash_attention (flash_attention.h).
  virtual std::string why_not_attention(Dtype /*dtype*/, std::int64_t /*head*/) const { return {}; }
  virtual void do_attention(const AttentionForward& call) = 0;
  virtual void do_attention_backward(const AttentionBackward& call) = 0;
};

}  // namespace machine
