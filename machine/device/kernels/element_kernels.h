#pragma once
// The elementwise part of Kernels, over a Launch that runs a body on a device:
//   each(count, body, fields...)      body(values...) for every element
//   each_at(rows, index, body, fields...)   body(index(i), values...), of rows of index.cols
//   join_to<T>(count, body, ins, outs, store)   body(a, b, out) from value to value, the result to
//                                               every one of outs
//   find_errors(count, body, errors)  body(i, errors) for every element

#include <stdexcept>
#include <utility>

#include "machine/device/kernels.h"
#include "machine/device/kernels/checks.h"
#include "machine/device/kernels/element_bodies.h"
#include "machine/device/kernels/fields.h"
#include "machine/device/kernels/gelu_table.h"
#include "machine/device/kernels/pattern_bodies.h"

namespace machine::kernel {

template <class Launch>
class ElementKernels : public Kernels {
 public:
  explicit ElementKernels(Launch launch) : launch_(std::move(launch)) {}

  void fill(const Tensor& out, double value) override;
  void cast(const Tensor& in, const Tensor& out) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& out) override;
  void scale(const Tensor& in, double factor, const Tensor& out) override;
  void accumulate(const Tensor& in, const Tensor& out) override;
  void reduce_to_all(Reduction reduction, Dtype dtype, std::span<const void* const> ins,
                     std::span<void* const> outs, std::int64_t count, Store store) override;
  void divide(Dtype dtype, void* data, std::int64_t count, std::int64_t divisor) override;
  void fill_normal(const Tensor& out, std::uint64_t seed, Region region, double mean,
                   double stddev) override;
  void fill_uniform(const Tensor& out, std::uint64_t seed, Region region, double low,
                    double high) override;
  void fill_pattern(const Tensor& out, const Pattern& pattern, int rank,
                    std::int64_t first) override;
  void check_pattern(const Tensor& output, const Pattern& pattern, const PatternPart& part,
                     double bound, const Tensor& errors) override;
  void gelu(const Tensor& x, const Tensor& out) override;
  void gelu_backward(const Tensor& x, const Tensor& d_out, const Tensor& d_x) override;
  void cross_entropy(const Tensor& sum_exp, const Tensor& target, const std::int32_t* targets,
                     const Tensor& loss) override;
  void triad(const Tensor& a, const Tensor& b, double factor, const Tensor& out) override;

 protected:
  void check(std::initializer_list<const Tensor*> tensors) const {
    check_kind(Launch::kind, tensors);
  }
  void check_alike(const Tensor& first, std::initializer_list<const Tensor*> others) const {
    check({&first});
    check(others);
    check_sizes(first.size(), others);
    check_dtypes(first.dtype(), others);
  }

  // 16-bit types have so few numbers that the host tabulates the results. A gather is cheaper than
  // an exponential and a division. GPUs compute the results, because a table was not measured
  // there.
  template <class T>
  static constexpr bool looks_up = Launch::kind == Device::Kind::host && sizeof(T) == 2;
  using InBits = In<std::uint16_t>;

  // Calls visitor(A{}) for the two types of sums and optimizer states.
  template <class Visitor>
  static void visit_wide(const char* kernel, Dtype dtype, Visitor&& visitor) {
    if (dtype == Dtype::float32) return visitor(float{});
    if (dtype == Dtype::float64) return visitor(double{});
    refuse_dtypes(kernel, dtype, sum_dtype(dtype));
  }

  Launch launch_;
};

// Outside of the class: only then does a file that declares an instantiation extern compile none of
// it.

template <class Launch>
void ElementKernels<Launch>::fill(const Tensor& out, double value) {
  check({&out});
  visit_every(out.dtype(), [&]<class T>(T) {
    launch_.fill(out.size(), Fill<Value<T>>{convert<Value<T>>(value)}, Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::cast(const Tensor& in, const Tensor& out) {
  check({&in, &out});
  check_sizes(in.size(), {&out});
  visit_every(in.dtype(), [&]<class T>(T) {
    visit_every(out.dtype(),
                [&]<class O>(O) { launch_.each(in.size(), Convert{}, In<T>(in), Out<O>(out)); });
  });
}

template <class Launch>
void ElementKernels<Launch>::add(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_alike(a, {&b, &out});
  visit(a.dtype(), [&]<class T>(T) {
    launch_.each(a.size(), Add<Value<T>>{}, In<T>(a), In<T>(b), Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::scale(const Tensor& in, double factor, const Tensor& out) {
  check_alike(in, {&out});
  visit(in.dtype(), [&]<class T>(T) {
    const Scale<Value<T>> body{static_cast<Value<T>>(factor)};
    launch_.each(in.size(), body, In<T>(in), Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::accumulate(const Tensor& in, const Tensor& out) {
  check({&in, &out});
  check_sizes(in.size(), {&out});
  visit_widening("accumulate", in.dtype(), out.dtype(), [&]<class T, class O>(T, O) {
    launch_.each(in.size(), Accumulate<Value<T>>{}, In<T>(in), InOut<O>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::reduce_to_all(Reduction reduction, Dtype dtype,
                                           std::span<const void* const> ins,
                                           std::span<void* const> outs, std::int64_t count,
                                           Store store) {
  if (ins.size() < 2) throw std::logic_error("a reduction of fewer than two values");
  visit_every(dtype, [&]<class T>(T) {
    using A = Value<T>;
    using C = Comparable<T>;
    switch (reduction) {
      case Reduction::sum:
      case Reduction::avg:
        return launch_.template join_to<T>(count, Add<A>{}, ins, outs, store);
      case Reduction::prod:
        return launch_.template join_to<T>(count, Multiply<A>{}, ins, outs, store);
      case Reduction::max:
        return launch_.template join_to<C>(count, Extreme<T, true>{}, ins, outs, store);
      case Reduction::min:
        return launch_.template join_to<C>(count, Extreme<T, false>{}, ins, outs, store);
    }
  });
}

template <class Launch>
void ElementKernels<Launch>::divide(Dtype dtype, void* data, std::int64_t count,
                                    std::int64_t divisor) {
  if (divisor < 1) throw std::logic_error("divide: the divisor must be at least 1");
  visit_every(dtype,
              [&]<class T>(T) { launch_.each(count, Divide<Value<T>>(divisor), InOut<T>(data)); });
}

template <class Launch>
void ElementKernels<Launch>::fill_normal(const Tensor& out, std::uint64_t seed, Region region,
                                         double mean, double stddev) {
  check({&out});
  visit(out.dtype(), [&]<class T>(T) {
    launch_.each_at(out.rows(), GlobalIndex(out.cols(), region),
                    FillNormal<Value<T>>{seed, mean, stddev}, Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::fill_uniform(const Tensor& out, std::uint64_t seed, Region region,
                                          double low, double high) {
  check({&out});
  visit(out.dtype(), [&]<class T>(T) {
    launch_.each_at(out.rows(), GlobalIndex(out.cols(), region),
                    FillUniform<Value<T>>{seed, low, high}, Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::fill_pattern(const Tensor& out, const Pattern& pattern, int rank,
                                          std::int64_t first) {
  check({&out});
  check_dtypes(pattern.dtype, {&out});
  if (out.size() == 0) return;
  visit_every(out.dtype(), [&]<class T>(T) {
    launch_.each_at(1, GlobalIndex(out.size(), {0, first, 0}), FillPattern<Value<T>>{pattern, rank},
                    Out<T>(out));
  });
}

template <class Launch>
void ElementKernels<Launch>::check_pattern(const Tensor& output, const Pattern& pattern,
                                           const PatternPart& part, double bound,
                                           const Tensor& errors) {
  check({&output, &errors});
  check_dtypes(pattern.dtype, {&output});
  check_dtypes(Dtype::uint64, {&errors});
  check_sizes(pattern_error_words, {&errors});
  const Tensor actual = output.slice(part.begin, {part.count});
  visit_every(output.dtype(), [&]<class T>(T) {
    launch_.find_errors(part.count, CheckPattern<T>{pattern, part, bound, actual.as<T>()},
                        static_cast<PatternErrors*>(errors.data()));
  });
}

template <class Launch>
void ElementKernels<Launch>::gelu(const Tensor& x, const Tensor& out) {
  check_alike(x, {&out});
  visit(x.dtype(), [&]<class T>(T) {
    if constexpr (looks_up<T>) {
      launch_.each(x.size(), LookUp{gelu_table<T>()}, InBits(x.data()), Out<T>(out));
    } else {
      launch_.each(x.size(), GeluForward<Value<T>>{}, In<T>(x), Out<T>(out));
    }
  });
}

template <class Launch>
void ElementKernels<Launch>::gelu_backward(const Tensor& x, const Tensor& d_out,
                                           const Tensor& d_x) {
  check_alike(x, {&d_out, &d_x});
  visit(x.dtype(), [&]<class T>(T) {
    if constexpr (looks_up<T>) {
      launch_.each(x.size(), LookUpAndMultiply{gelu_slope_table<T>()}, InBits(x.data()),
                   In<T>(d_out), Out<T>(d_x));
    } else {
      launch_.each(x.size(), GeluBackward<Value<T>>{}, In<T>(x), In<T>(d_out), Out<T>(d_x));
    }
  });
}

template <class Launch>
void ElementKernels<Launch>::cross_entropy(const Tensor& sum_exp, const Tensor& target,
                                           const std::int32_t* targets, const Tensor& loss) {
  check_alike(sum_exp, {&target, &loss});
  visit_wide("cross_entropy", sum_exp.dtype(), [&]<class A>(A) {
    launch_.each(sum_exp.size(), CrossEntropy<A>{}, In<A>(sum_exp), In<A>(target),
                 In<std::int32_t>(targets), Out<A>(loss));
  });
}

template <class Launch>
void ElementKernels<Launch>::triad(const Tensor& a, const Tensor& b, double factor,
                                   const Tensor& out) {
  check_alike(a, {&b, &out});
  visit(a.dtype(), [&]<class T>(T) {
    const Triad<Value<T>> body{static_cast<Value<T>>(factor)};
    launch_.each(a.size(), body, In<T>(a), In<T>(b), Out<T>(out));
  });
}

}  // namespace machine::kernel
