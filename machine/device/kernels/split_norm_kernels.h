#pragma once
// SplitNorm over a Launch that runs a body for every row (row_bodies.h).

#include "machine/device/kernels/checks.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/functions.h"
#include "machine/device/split_norm.h"

namespace machine::kernel {

template <class T>
struct SplitNormSums {
  const T* x;
  Value<T>*sum, *squares;
  std::int64_t cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T* in = x + row * cols;
    const A of_x = lanes.template sum<A>(cols, [=](std::int64_t c) { return widen(in[c]); });
    const A of_squares =
        lanes.template sum<A>(cols, [=](std::int64_t c) { return widen(in[c]) * widen(in[c]); });
    if (lanes.leads()) {
      sum[row] = of_x;
      squares[row] = of_squares;
    }
  }
};

template <class T>
struct SplitNormNormalize {
  const T* x;
  const Value<T>*sum, *squares;
  const T *gain, *bias;
  T* y;
  Value<T>*mean, *rstd;
  std::int64_t cols;
  Value<T> columns, epsilon;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *shift = bias;
    T* to = y + row * cols;
    const A mu = sum[row] / columns, variance = squares[row] / columns - mu * mu;
    const A r = A(1) / square_root((variance > A(0) ? variance : A(0)) + epsilon);
    lanes.each(cols, [=](std::int64_t c) {
      to[c] = narrow<T>((widen(in[c]) - mu) * r * widen(scale[c]) + widen(shift[c]));
    });
    if (lanes.leads()) {
      mean[row] = mu;
      rstd[row] = r;
    }
  }
};

template <class T>
struct SplitNormSlopeSums {
  const T *x, *gain;
  const Value<T>*mean, *rstd;
  const T* d_y;
  Value<T>*sum, *dot;
  std::int64_t cols;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *slope = d_y + row * cols;
    const A mu = mean[row], r = rstd[row];
    const A of_g = lanes.template sum<A>(
        cols, [=](std::int64_t c) { return widen(slope[c]) * widen(scale[c]); });
    const A of_gn = lanes.template sum<A>(cols, [=](std::int64_t c) {
      return widen(slope[c]) * widen(scale[c]) * ((widen(in[c]) - mu) * r);
    });
    if (lanes.leads()) {
      sum[row] = of_g;
      dot[row] = of_gn;
    }
  }
};

template <class T>
struct SplitNormSlopes {
  const T *x, *gain;
  const Value<T>*mean, *rstd;
  const T* d_y;
  const Value<T>*sum, *dot;
  T* d_x;
  std::int64_t cols;
  Value<T> columns;

  template <class Lanes>
  SHARDMARK_BOTH void operator()(std::int64_t row, const Lanes& lanes) const {
    using A = Value<T>;
    const T *in = x + row * cols, *scale = gain, *slope = d_y + row * cols;
    T* to = d_x + row * cols;
    const A mu = mean[row], r = rstd[row];
    const A mean_g = sum[row] / columns, mean_gn = dot[row] / columns;
    lanes.each(cols, [=](std::int64_t c) {
      const A n = (widen(in[c]) - mu) * r;
      to[c] = narrow<T>(r * ((widen(slope[c]) * widen(scale[c]) - mean_g) - n * mean_gn));
    });
  }
};

template <class Launch>
class SplitNormKernels final : public SplitNorm {
 public:
  explicit SplitNormKernels(Launch launch) : launch_(std::move(launch)) {}

  void sums(const Tensor& x, const Tensor& sums) const override {
    check_kind(Launch::kind, {&x});
    check_rows_of(x, 2, {&sums});
    visit(x.dtype(), [&]<class T>(T) {
      auto* const to = sums.as<Value<T>>();
      launch_.rows(x.rows(), x.cols(), SplitNormSums<T>{x.as<T>(), to, to + x.rows(), x.cols()});
    });
  }

  void normalize(const Tensor& x, const Tensor& sums, std::int64_t columns, const Tensor& gain,
                 const Tensor& bias, double epsilon, const Tensor& y, const Tensor& mean,
                 const Tensor& rstd) const override {
    check_alike(x, gain, {&y, &bias});
    check_sizes(x.cols(), {&bias});
    check_sizes(x.size(), {&y});
    check_rows_of(x, 2, {&sums});
    check_rows_of(x, 1, {&mean, &rstd});
    visit(x.dtype(), [&]<class T>(T) {
      using A = Value<T>;
      const A* const from = sums.as<A>();
      launch_.rows(
          x.rows(), x.cols(),
          SplitNormNormalize<T>{x.as<T>(), from, from + x.rows(), gain.as<T>(), bias.as<T>(),
                                y.as<T>(), mean.as<A>(), rstd.as<A>(), x.cols(),
                                static_cast<A>(columns), static_cast<A>(epsilon)});
    });
  }

  void slope_sums(const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
                  const Tensor& d_y, const Tensor& sums) const override {
    check_alike(x, gain, {&d_y});
    check_sizes(x.size(), {&d_y});
    check_rows_of(x, 2, {&sums});
    check_rows_of(x, 1, {&mean, &rstd});
    visit(x.dtype(), [&]<class T>(T) {
      using A = Value<T>;
      A* const to = sums.as<A>();
      launch_.rows(x.rows(), x.cols(),
                   SplitNormSlopeSums<T>{x.as<T>(), gain.as<T>(), mean.as<A>(), rstd.as<A>(),
                                         d_y.as<T>(), to, to + x.rows(), x.cols()});
    });
  }

  void slopes(const Tensor& x, const Tensor& gain, const Tensor& mean, const Tensor& rstd,
              const Tensor& d_y, const Tensor& sums, std::int64_t columns,
              const Tensor& d_x) const override {
    check_alike(x, gain, {&d_y, &d_x});
    check_sizes(x.size(), {&d_y, &d_x});
    check_rows_of(x, 2, {&sums});
    check_rows_of(x, 1, {&mean, &rstd});
    visit(x.dtype(), [&]<class T>(T) {
      using A = Value<T>;
      const A* const from = sums.as<A>();
      launch_.rows(
          x.rows(), x.cols(),
          SplitNormSlopes<T>{x.as<T>(), gain.as<T>(), mean.as<A>(), rstd.as<A>(), d_y.as<T>(), from,
                             from + x.rows(), d_x.as<T>(), x.cols(), static_cast<A>(columns)});
    });
  }

 private:
  static void check_alike(const Tensor& x, const Tensor& gain,
                          std::initializer_list<const Tensor*> others) {
    check_kind(Launch::kind, {&x, &gain});
    check_kind(Launch::kind, others);
    check_dtypes(x.dtype(), {&gain});
    check_dtypes(x.dtype(), others);
    check_sizes(x.cols(), {&gain});
  }
  static void check_rows_of(const Tensor& x, std::int64_t each,
                            std::initializer_list<const Tensor*> values) {
    check_kind(Launch::kind, values);
    check_dtypes(sum_dtype(x.dtype()), values);
    check_sizes(each * x.rows(), values);
  }

  Launch launch_;
};

}  // namespace machine::kernel
