#pragma once
// The part of Kernels for newer transformer blocks, over a Launch that runs the bodies:
//   each_strided(rows, cols, body, rows of fields...)   body(values...) for every element
//   rotate(rotation)                                    Rotation (block_bodies.h)

#include <array>

#include "machine/device/kernels/block_bodies.h"
#include "machine/device/kernels/column_kernels.h"

namespace machine::kernel {

template <class Launch>
class BlockKernels : public ColumnKernels<Launch> {
 public:
  using ColumnKernels<Launch>::ColumnKernels;

  void rms_norm(const Tensor& x, const Tensor& gain, double epsilon, const Tensor& out,
                const Tensor& rstd) override;
  void rms_norm_backward_input(const Tensor& x, const Tensor& gain, const Tensor& rstd,
                               const Tensor& d_out, const Tensor& d_x) override;
  void rms_norm_backward_weights(const Tensor& x, const Tensor& rstd, const Tensor& d_out,
                                 const Tensor& d_gain) override;
  void swiglu(const Matrix& gate, const Matrix& up, const Matrix& out) override;
  void swiglu_backward(const Matrix& gate, const Matrix& up, const Matrix& d_out,
                       const Matrix& d_gate, const Matrix& d_up) override;
  void merge_attention(const Matrix& block, const Matrix& block_log_sum_exp, const Matrix& out,
                       const Matrix& log_sum_exp) override;
  void rotary(const Matrix& x, const Rotary& options, const Matrix& out) override;
  void rotary_backward(const Matrix& d_out, const Rotary& options, const Matrix& d_x) override;
  void dropout(const Tensor& in, double probability, std::uint64_t seed, Region region,
               const Tensor& out) override;

 private:
  void rotate(const Matrix& in, const Rotary& options, double direction, const Matrix& out) {
    check_heads("rotary", in, {&out});
    check_equal("rotary: columns without a partner", in.cols % 2, 0);
    if (!(options.base > 0)) throw std::logic_error("rotary: the base must be positive");
    visit(in.dtype, [&]<class T>(T) {
      this->launch_.rotate(Rotation<T>{static_cast<const T*>(in.data), static_cast<T*>(out.data),
                                       in.rows, in.cols / 2, options.first_position, options.step,
                                       in.batch[0], in.batch[1], in.row_stride, in.batch_stride[0],
                                       in.batch_stride[1], out.row_stride, out.batch_stride[0],
                                       out.batch_stride[1], options.base, direction});
    });
  }
};

// Outside of the class: only then does a file that declares an instantiation extern compile none of
// it.

template <class Launch>
void BlockKernels<Launch>::rms_norm(const Tensor& x, const Tensor& gain, double epsilon,
                                    const Tensor& out, const Tensor& rstd) {
  this->check_alike(x, {&out});
  this->check_vectors(x.dtype(), x.cols(), {&gain});
  this->check_vectors(sum_dtype(x.dtype()), x.rows(), {&rstd});
  visit(x.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    this->run_rows(x, RmsNorm<T>{x.as<T>(), gain.as<T>(), out.as<T>(), rstd.as<A>(), x.cols(),
                                 static_cast<A>(epsilon)});
  });
}

template <class Launch>
void BlockKernels<Launch>::rms_norm_backward_input(const Tensor& x, const Tensor& gain,
                                                   const Tensor& rstd, const Tensor& d_out,
                                                   const Tensor& d_x) {
  this->check_alike(x, {&d_out, &d_x});
  this->check_vectors(x.dtype(), x.cols(), {&gain});
  this->check_vectors(sum_dtype(x.dtype()), x.rows(), {&rstd});
  visit(x.dtype(), [&]<class T>(T) {
    this->run_rows(x, RmsNormBackwardInput<T>{x.as<T>(), gain.as<T>(), rstd.as<Value<T>>(),
                                              d_out.as<T>(), d_x.as<T>(), x.cols()});
  });
}

template <class Launch>
void BlockKernels<Launch>::rms_norm_backward_weights(const Tensor& x, const Tensor& rstd,
                                                     const Tensor& d_out, const Tensor& d_gain) {
  this->check_alike(x, {&d_out});
  this->check_vectors(sum_dtype(x.dtype()), x.rows(), {&rstd});
  this->check_vectors(d_gain.dtype(), x.cols(), {&d_gain});
  visit_widening(
      "rms_norm_backward_weights", x.dtype(), d_gain.dtype(), [&]<class T, class O>(T, O) {
        this->launch_.template columns<1>(
            x.rows(), x.cols(),
            RmsNormBackwardWeights<T>{x.as<T>(), d_out.as<T>(), rstd.as<Value<T>>(), x.cols()},
            std::array<O*, 1>{d_gain.as<O>()});
      });
}

template <class Launch>
void BlockKernels<Launch>::swiglu(const Matrix& gate, const Matrix& up, const Matrix& out) {
  check_rows("swiglu", gate, {&up, &out});
  visit(gate.dtype, [&]<class T>(T) {
    this->launch_.each_strided(gate.rows, gate.cols, SwigluForward<Value<T>>{},
                               Strided<In<T>>(gate), Strided<In<T>>(up), Strided<Out<T>>(out));
  });
}

template <class Launch>
void BlockKernels<Launch>::swiglu_backward(const Matrix& gate, const Matrix& up,
                                           const Matrix& d_out, const Matrix& d_gate,
                                           const Matrix& d_up) {
  check_rows("swiglu_backward", gate, {&up, &d_out, &d_gate, &d_up});
  visit(gate.dtype, [&]<class T>(T) {
    this->launch_.each_strided(gate.rows, gate.cols, SwigluBackward<Value<T>>{},
                               Strided<In<T>>(gate), Strided<In<T>>(up), Strided<In<T>>(d_out),
                               Strided<Out<T>>(d_gate), Strided<Out<T>>(d_up));
  });
}

template <class Launch>
void BlockKernels<Launch>::merge_attention(const Matrix& block, const Matrix& block_log_sum_exp,
                                           const Matrix& out, const Matrix& log_sum_exp) {
  check_heads("merge_attention", block, {});
  check_heads("merge_attention", out, {});
  check_rows("merge_attention", log_sum_exp, {&block_log_sum_exp});
  check_equal("merge_attention: rows of block and out", block.rows, out.rows);
  check_equal("merge_attention: columns of block and out", block.cols, out.cols);
  for (const std::size_t level : {0, 1})
    check_equal("merge_attention: batches of block and out", block.batch[level], out.batch[level]);
  check_equal("merge_attention: matrices and rows of logarithms", out.batch[0] * out.batch[1],
              log_sum_exp.rows);
  check_equal("merge_attention: queries and columns of logarithms", out.rows, log_sum_exp.cols);
  for (const Matrix* sums : {&out, &log_sum_exp})
    if (sums->dtype != sum_dtype(block.dtype))
      refuse_dtypes("merge_attention", block.dtype, sums->dtype);
  visit(block.dtype, [&]<class T>(T) {
    using A = Value<T>;
    const auto strides = [](const Matrix& of) {
      return typename MergeAttention<T>::Strides{of.row_stride, of.batch_stride[0],
                                                 of.batch_stride[1]};
    };
    this->launch_.rows(
        log_sum_exp.rows * log_sum_exp.cols, block.cols,
        MergeAttention<T>{static_cast<const T*>(block.data),
                          static_cast<const A*>(block_log_sum_exp.data), static_cast<A*>(out.data),
                          static_cast<const A*>(log_sum_exp.data), strides(block), strides(out),
                          block_log_sum_exp.row_stride, log_sum_exp.row_stride, block.batch[1],
                          block.rows, block.cols});
    this->launch_.rows(
        log_sum_exp.rows, log_sum_exp.cols,
        MergeLogSumExp<A>{static_cast<const A*>(block_log_sum_exp.data),
                          static_cast<A*>(log_sum_exp.data), block_log_sum_exp.row_stride,
                          log_sum_exp.row_stride, log_sum_exp.cols});
  });
}

template <class Launch>
void BlockKernels<Launch>::rotary(const Matrix& x, const Rotary& options, const Matrix& out) {
  rotate(x, options, 1, out);
}

template <class Launch>
void BlockKernels<Launch>::rotary_backward(const Matrix& d_out, const Rotary& options,
                                           const Matrix& d_x) {
  rotate(d_out, options, -1, d_x);
}

template <class Launch>
void BlockKernels<Launch>::dropout(const Tensor& in, double probability, std::uint64_t seed,
                                   Region region, const Tensor& out) {
  this->check_alike(in, {&out});
  check_equal("dropout: cols of in and out", in.cols(), out.cols());
  check_probability("dropout", probability);
  const auto least_kept = static_cast<std::uint64_t>(std::ceil(probability * 0x1p32));
  visit(in.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    this->launch_.each_at(in.rows(), GlobalIndex(in.cols(), region),
                          Dropout<A>{seed, least_kept, static_cast<A>(1 / (1 - probability))},
                          In<T>(in), Out<T>(out));
  });
}

}  // namespace machine::kernel
