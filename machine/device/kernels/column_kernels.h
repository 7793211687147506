#pragma once
// The part of Kernels that sums over rows or over all elements, over a Launch that runs the bodies:
//   columns<N>(rows, cols, body, outs)   outs[k][col] += sum over row of body(row, col).of[k]
//   total(count, body, in, out)          *out = sum of body(in[i]) in double
//   scatter_rows(tokens, rows, body)     body(row, lanes) for the rows of each table row, ascending

#include <array>

#include "machine/device/kernels/row_kernels.h"
#include "machine/device/kernels/sums.h"

namespace machine::kernel {

template <class T>
struct Column {
  const T* x;
  std::int64_t cols;
  SHARDMARK_BOTH Sums<1, Value<T>> operator()(std::int64_t row, std::int64_t col) const {
    return {{widen(x[row * cols + col])}};
  }
};

template <class T>
struct LayerNormBackwardWeights {
  const T *x, *d_out;
  const Value<T>*mean, *rstd;
  std::int64_t cols;
  SHARDMARK_BOTH Sums<2, Value<T>> operator()(std::int64_t row, std::int64_t col) const {
    const Value<T> slope = widen(d_out[row * cols + col]);
    const Value<T> normal = (widen(x[row * cols + col]) - mean[row]) * rstd[row];
    return {{slope * normal, slope}};
  }
};

struct Plain {
  SHARDMARK_BOTH double operator()(double x) const { return x; }
};

struct Square {
  SHARDMARK_BOTH double operator()(double x) const { return x * x; }
};

template <class T, class O>
struct EmbeddingBackward {
  using Sum = Value<O>;
  const std::int32_t* tokens;
  const T* d_out;
  O* d_table;
  std::int64_t first_row, table_rows, cols;

  SHARDMARK_BOTH bool owns(std::int64_t row) const {
    const std::int64_t entry = tokens[row] - first_row;
    return entry >= 0 && entry < table_rows;
  }
  SHARDMARK_BOTH O* entry_of(std::int64_t row) const {
    return d_table + (tokens[row] - first_row) * cols;
  }
  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    const T* from = d_out + row * cols;
    O* to = entry_of(row);
    lanes.each(cols, [=](std::int64_t c) { to[c] = narrow<O>(widen(to[c]) + widen(from[c])); });
  }

  // The same with the sum of a column in a register.
  SHARDMARK_BOTH Sum sum(std::int64_t row, std::int64_t col) const {
    return widen(entry_of(row)[col]);
  }
  SHARDMARK_BOTH Sum term(std::int64_t row, std::int64_t col) const {
    return widen(d_out[row * cols + col]);
  }
  SHARDMARK_BOTH static Sum add(Sum sum, Sum term) { return widen(narrow<O>(sum + term)); }
  SHARDMARK_BOTH void set(std::int64_t row, std::int64_t col, Sum sum) const {
    entry_of(row)[col] = narrow<O>(sum);
  }
};

template <class Launch>
class ColumnKernels : public RowKernels<Launch> {
 public:
  using RowKernels<Launch>::RowKernels;

  void accumulate_column_sums(const Tensor& x, const Tensor& out) override;
  void layer_norm_backward_weights(const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                   const Tensor& d_out, const Tensor& d_gain,
                                   const Tensor& d_bias) override;
  void embedding_backward(const std::int32_t* tokens, const Tensor& d_out, std::int64_t first_row,
                          const Tensor& d_table) override;
  void sum(const Tensor& in, const Tensor& out) override;
  void sum_of_squares(const Tensor& in, const Tensor& out) override;

 private:
  template <class Body>
  void total(const Tensor& in, const Body& body, const Tensor& out) {
    this->check({&in});
    this->check_vectors(Dtype::float64, 1, {&out});
    visit(in.dtype(),
          [&]<class T>(T) { this->launch_.total(in.size(), body, in.as<T>(), out.as<double>()); });
  }
};

// Outside of the class: only then does a file that declares an instantiation extern compile none of
// it.

template <class Launch>
void ColumnKernels<Launch>::accumulate_column_sums(const Tensor& x, const Tensor& out) {
  this->check({&x});
  this->check_vectors(out.dtype(), x.cols(), {&out});
  visit_widening("accumulate_column_sums", x.dtype(), out.dtype(), [&]<class T, class O>(T, O) {
    this->launch_.template columns<1>(x.rows(), x.cols(), Column<T>{x.as<T>(), x.cols()},
                                      std::array<O*, 1>{out.as<O>()});
  });
}

template <class Launch>
void ColumnKernels<Launch>::layer_norm_backward_weights(const Tensor& x, const Tensor& mean,
                                                        const Tensor& rstd, const Tensor& d_out,
                                                        const Tensor& d_gain,
                                                        const Tensor& d_bias) {
  this->check_alike(x, {&d_out});
  this->check_vectors(sum_dtype(x.dtype()), x.rows(), {&mean, &rstd});
  this->check_vectors(d_gain.dtype(), x.cols(), {&d_gain, &d_bias});
  visit_widening("layer_norm_backward_weights", x.dtype(), d_gain.dtype(),
                 [&]<class T, class O>(T, O) {
                   using A = Value<T>;
                   this->launch_.template columns<2>(
                       x.rows(), x.cols(),
                       LayerNormBackwardWeights<T>{x.as<T>(), d_out.as<T>(), mean.as<A>(),
                                                   rstd.as<A>(), x.cols()},
                       std::array<O*, 2>{d_gain.as<O>(), d_bias.as<O>()});
                 });
}

template <class Launch>
void ColumnKernels<Launch>::embedding_backward(const std::int32_t* tokens, const Tensor& d_out,
                                               std::int64_t first_row, const Tensor& d_table) {
  this->check({&d_out, &d_table});
  check_equal("embedding_backward: cols of d_table and d_out", d_table.cols(), d_out.cols());
  visit_widening("embedding_backward", d_out.dtype(), d_table.dtype(), [&]<class T, class O>(T, O) {
    this->launch_.scatter_rows(tokens, d_out.rows(),
                               EmbeddingBackward<T, O>{tokens, d_out.as<T>(), d_table.as<O>(),
                                                       first_row, d_table.rows(), d_out.cols()});
  });
}

template <class Launch>
void ColumnKernels<Launch>::sum(const Tensor& in, const Tensor& out) {
  total(in, Plain{}, out);
}

template <class Launch>
void ColumnKernels<Launch>::sum_of_squares(const Tensor& in, const Tensor& out) {
  total(in, Square{}, out);
}

}  // namespace machine::kernel
