#pragma once
// Common parts of the kernel tests: a fixture for every dtype, or every floating one, on the host
// and on a CUDA device if present. Also inputs, and the comparison with a bound.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "machine/device/gemm.h"
#include "machine/device/kernels.h"

namespace machine {

using Real = long double;  // for references: 11 bits more than the widest dtype
using Values = std::vector<double>;

// Returns the roundoff of the type that accumulates sums.
inline double sum_roundoff(Dtype dtype) { return std::min(unit_roundoff(dtype), 0x1p-24); }

// Returns the error of rounding x to dtype: relative, or half the smallest subnormal number.
inline double rounding(Dtype dtype, double x) {
  const double half_smallest = dtype == Dtype::float8_e4m3   ? 0x1p-10
                               : dtype == Dtype::float8_e5m2 ? 0x1p-17
                               : dtype == Dtype::float16     ? 0x1p-25
                               : dtype == Dtype::bfloat16    ? 0x1p-134
                               : dtype == Dtype::float32     ? 0x1p-150
                                                             : 0x1p-1074;
  return std::max(unit_roundoff(dtype) * std::abs(x), half_smallest);
}

// Compares `got`, in dtype, with reference +- error. `error` excludes the last rounding.
inline void expect_within(const Values& got, const std::vector<Real>& reference,
                          const std::vector<Real>& error, Dtype dtype) {
  ASSERT_EQ(got.size(), reference.size());
  ASSERT_EQ(error.size(), reference.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Real before = error[i] + 0x1p-60L * std::abs(reference[i]);  // of the reference
    const Real bound =
        before + rounding(dtype, static_cast<double>(std::abs(reference[i]) + before));
    // Written so that NaN fails.
    ASSERT_TRUE(std::abs(static_cast<Real>(got[i]) - reference[i]) <= bound)
        << "element " << i << ": " << got[i] << " against " << static_cast<double>(reference[i])
        << " +- " << static_cast<double>(bound);
  }
}

class OnDevice : public testing::TestWithParam<std::tuple<Device::Kind, Dtype>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == Device::Kind::host) {
      device_ = make_host_device();
    } else if (cuda::count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    } else {
      device_ = cuda::make_device(0);
    }
  }

  Dtype dtype() const { return std::get<1>(GetParam()); }
  bool is_narrow() const { return size_of(dtype()) == 2; }
  Dtype wide() const { return dtype() == Dtype::float64 ? Dtype::float64 : Dtype::float32; }
  // Returns the dtypes in which gradients of this dtype are accumulated.
  std::vector<Dtype> sums() const {
    return is_narrow() ? std::vector{dtype(), Dtype::float32} : std::vector{dtype()};
  }
  Kernels& kernels() { return device_->stream().kernels(); }

  Tensor empty(Shape shape, Dtype dtype) {
    Tensor tensor(*device_, dtype, shape, Category::buffers);
    // Elements that a kernel does not write are detected.
    from_doubles(tensor, Values(static_cast<std::size_t>(tensor.size()), NAN));
    return tensor;
  }
  Tensor empty(Shape shape) { return empty(shape, dtype()); }

  Tensor random(Shape shape, Dtype dtype, double low = -2, double high = 2) {
    Tensor tensor = empty(shape, dtype);
    std::uniform_real_distribution<double> distribution(low, high);
    Values values(tensor.size());
    for (double& value : values) value = distribution(generator_);
    from_doubles(tensor, values);
    return tensor;
  }
  Tensor random(Shape shape, double low = -2, double high = 2) {
    return random(shape, dtype(), low, high);
  }

  // Compares `out` with reference(i) +- error(i). The error excludes the rounding to the result's
  // dtype.
  template <class Reference, class Error>
  void expect(const Tensor& out, Reference reference, Error error) {
    std::vector<Real> values, errors;
    for (std::size_t i = 0; i < static_cast<std::size_t>(out.size()); ++i) {
      values.push_back(reference(i));
      errors.push_back(error(i));
    }
    expect_within(to_doubles(out), values, errors, out.dtype());
  }

  Stream& stream() { return device_->stream(); }
  template <class T>
  Tensor on_device(Dtype dtype, const std::vector<T>& values) {
    Tensor tensor(*device_, dtype, {std::ssize(values)}, Category::buffers);
    stream().copy(tensor.data(), values.data(), tensor.bytes());
    stream().synchronize();
    return tensor;
  }
  template <class T>
  std::vector<T> from_device(const Tensor& tensor) {
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    stream().copy(values.data(), tensor.data(), tensor.bytes());
    stream().synchronize();
    return values;
  }
  template <class T>
  Memory upload(const std::vector<T>& values) {
    Memory memory = device_->allocate(values.size() * sizeof(T), Category::buffers);
    device_->stream().copy(memory.data(), values.data(), memory.bytes());
    device_->stream().synchronize();
    return memory;
  }

  std::mt19937_64 generator_{20240607};
  std::unique_ptr<Device> device_;
};

inline std::string case_name(const testing::TestParamInfo<OnDevice::ParamType>& info) {
  const bool host = std::get<0>(info.param) == Device::Kind::host;
  return (host ? "host_" : "cuda_") + std::string(name(std::get<1>(info.param)));
}

#define SHARDMARK_ON_EVERY_DEVICE_IN(suite, dtypes)                                         \
  INSTANTIATE_TEST_SUITE_P(, suite,                                                         \
                           testing::Combine(testing::Values(::machine::Device::Kind::host,  \
                                                            ::machine::Device::Kind::cuda), \
                                            testing::ValuesIn(::machine::dtypes)),          \
                           ::machine::case_name)
#define SHARDMARK_ON_EVERY_DEVICE(suite) SHARDMARK_ON_EVERY_DEVICE_IN(suite, floating_dtypes)

}  // namespace machine
