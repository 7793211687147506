#pragma once
// The row-wise part of Kernels, over a Launch that runs a body on a device:
//   rows(rows, cols, body)   body(row, lanes) for every row (row_bodies.h)

#include <algorithm>

#include "machine/device/kernels/element_kernels.h"
#include "machine/device/kernels/row_bodies.h"

namespace machine::kernel {

template <class Launch>
class RowKernels : public ElementKernels<Launch> {
 public:
  using ElementKernels<Launch>::ElementKernels;

  void add_bias(const Tensor& x, const Tensor& bias, const Tensor& out) override;
  void layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon,
                  const Tensor& out, const Tensor& mean, const Tensor& rstd) override;
  void layer_norm_backward_input(const Tensor& x, const Tensor& gain, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& d_out,
                                 const Tensor& d_x) override;
  void softmax(const Tensor& scores, double scale, const SoftmaxMask& mask,
               const Tensor& probabilities) override;
  void softmax_backward(const Tensor& probabilities, const Tensor& d_probabilities, double scale,
                        const SoftmaxMask& mask, const Tensor& d_scores) override;
  void embedding(const std::int32_t* tokens, const Tensor& table, std::int64_t first_row,
                 const Tensor& out) override;
  void row_max(const Tensor& logits, std::int64_t first_col, std::int64_t vocabulary,
               const Tensor& out) override;
  void exp_sums(const Tensor& logits, const Tensor& max, const std::int32_t* targets,
                std::int64_t first_col, std::int64_t vocabulary, const Tensor& sum_exp,
                const Tensor& target) override;
  void cross_entropy_backward(const Tensor& logits, const Tensor& max, const Tensor& sum_exp,
                              const std::int32_t* targets, std::int64_t first_col,
                              std::int64_t vocabulary, double factor,
                              const Tensor& d_logits) override;

 protected:
  template <class Body>
  void run_rows(const Tensor& x, const Body& body) const {
    this->launch_.rows(x.rows(), x.cols(), body);
  }
  void check_vectors(Dtype dtype, std::int64_t size,
                     std::initializer_list<const Tensor*> vectors) const {
    this->check(vectors);
    check_dtypes(dtype, vectors);
    check_sizes(size, vectors);
  }

 private:
  static std::int64_t real_cols(const Tensor& logits, std::int64_t first_col,
                                std::int64_t vocabulary) {
    return std::clamp<std::int64_t>(vocabulary - first_col, 0, logits.cols());
  }
  static std::int64_t queries_of(const Tensor& scores) {
    const Shape& shape = scores.shape();
    if (shape.rank() < 2) throw std::logic_error("softmax: scores must be [..., queries, keys]");
    return shape[shape.rank() - 2];
  }
};

// Outside of the class: only then does a file that declares an instantiation extern compile none of
// it.

template <class Launch>
void RowKernels<Launch>::add_bias(const Tensor& x, const Tensor& bias, const Tensor& out) {
  this->check_alike(x, {&out});
  check_vectors(x.dtype(), x.cols(), {&bias});
  visit(x.dtype(), [&]<class T>(T) {
    run_rows(x, AddBias<T>{x.as<T>(), bias.as<T>(), out.as<T>(), x.cols()});
  });
}

template <class Launch>
void RowKernels<Launch>::layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias,
                                    double epsilon, const Tensor& out, const Tensor& mean,
                                    const Tensor& rstd) {
  this->check_alike(x, {&out});
  check_vectors(x.dtype(), x.cols(), {&gain, &bias});
  check_vectors(sum_dtype(x.dtype()), x.rows(), {&mean, &rstd});
  visit(x.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    run_rows(x, LayerNorm<T>{x.as<T>(), gain.as<T>(), bias.as<T>(), out.as<T>(), mean.as<A>(),
                             rstd.as<A>(), x.cols(), static_cast<A>(epsilon)});
  });
}

template <class Launch>
void RowKernels<Launch>::layer_norm_backward_input(const Tensor& x, const Tensor& gain,
                                                   const Tensor& mean, const Tensor& rstd,
                                                   const Tensor& d_out, const Tensor& d_x) {
  this->check_alike(x, {&d_out, &d_x});
  check_vectors(x.dtype(), x.cols(), {&gain});
  check_vectors(sum_dtype(x.dtype()), x.rows(), {&mean, &rstd});
  visit(x.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    run_rows(x, LayerNormBackwardInput<T>{x.as<T>(), gain.as<T>(), mean.as<A>(), rstd.as<A>(),
                                          d_out.as<T>(), d_x.as<T>(), x.cols()});
  });
}

template <class Launch>
void RowKernels<Launch>::softmax(const Tensor& scores, double scale, const SoftmaxMask& mask,
                                 const Tensor& probabilities) {
  this->check_alike(scores, {&probabilities});
  visit(scores.dtype(), [&]<class T>(T) {
    run_rows(scores, MaskedSoftmax<T>{scores.as<T>(), probabilities.as<T>(),
                                      SeenKeys(mask, queries_of(scores), scores.cols()),
                                      static_cast<Value<T>>(scale)});
  });
}

template <class Launch>
void RowKernels<Launch>::softmax_backward(const Tensor& probabilities,
                                          const Tensor& d_probabilities, double scale,
                                          const SoftmaxMask& mask, const Tensor& d_scores) {
  this->check_alike(probabilities, {&d_probabilities, &d_scores});
  visit(probabilities.dtype(), [&]<class T>(T) {
    run_rows(probabilities, MaskedSoftmaxBackward<T>{
                                probabilities.as<T>(), d_probabilities.as<T>(), d_scores.as<T>(),
                                SeenKeys(mask, queries_of(probabilities), probabilities.cols()),
                                static_cast<Value<T>>(scale)});
  });
}

template <class Launch>
void RowKernels<Launch>::embedding(const std::int32_t* tokens, const Tensor& table,
                                   std::int64_t first_row, const Tensor& out) {
  this->check({&table, &out});
  check_dtypes(table.dtype(), {&out});
  check_equal("embedding: cols of table and out", table.cols(), out.cols());
  visit(table.dtype(), [&]<class T>(T) {
    using Bits = Comparable<T>;  // integers, because compilers vectorize copies of them
    run_rows(out, Embedding<Bits>{tokens, static_cast<const Bits*>(table.data()),
                                  static_cast<Bits*>(out.data()), first_row, table.rows(),
                                  table.cols()});
  });
}

template <class Launch>
void RowKernels<Launch>::row_max(const Tensor& logits, std::int64_t first_col,
                                 std::int64_t vocabulary, const Tensor& out) {
  this->check({&logits});
  check_vectors(sum_dtype(logits.dtype()), logits.rows(), {&out});
  visit(logits.dtype(), [&]<class T>(T) {
    run_rows(logits, RowMax<T>{logits.as<T>(), out.as<Value<T>>(), logits.cols(),
                               real_cols(logits, first_col, vocabulary)});
  });
}

template <class Launch>
void RowKernels<Launch>::exp_sums(const Tensor& logits, const Tensor& max,
                                  const std::int32_t* targets, std::int64_t first_col,
                                  std::int64_t vocabulary, const Tensor& sum_exp,
                                  const Tensor& target) {
  this->check({&logits});
  check_vectors(sum_dtype(logits.dtype()), logits.rows(), {&max, &sum_exp, &target});
  visit(logits.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    run_rows(logits,
             ExpSums<T>{logits.as<T>(), max.as<A>(), targets, first_col, logits.cols(),
                        real_cols(logits, first_col, vocabulary), sum_exp.as<A>(), target.as<A>()});
  });
}

template <class Launch>
void RowKernels<Launch>::cross_entropy_backward(const Tensor& logits, const Tensor& max,
                                                const Tensor& sum_exp, const std::int32_t* targets,
                                                std::int64_t first_col, std::int64_t vocabulary,
                                                double factor, const Tensor& d_logits) {
  this->check_alike(logits, {&d_logits});
  check_vectors(sum_dtype(logits.dtype()), logits.rows(), {&max, &sum_exp});
  visit(logits.dtype(), [&]<class T>(T) {
    using A = Value<T>;
    run_rows(logits, CrossEntropyBackward<T>{logits.as<T>(), max.as<A>(), sum_exp.as<A>(), targets,
                                             d_logits.as<T>(), first_col, logits.cols(),
                                             real_cols(logits, first_col, vocabulary),
                                             static_cast<A>(factor)});
  });
}

}  // namespace machine::kernel
