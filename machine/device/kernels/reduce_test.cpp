// The kernels that collectives and their data need for every dtype: reduce, divide, fill and cast.
// References are scalar, with 128 bits for integers. Results are compared bit by bit.

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

__extension__ using Wide = __int128;
// A product of two unsigned 64-bit numbers may exceed a signed one.
__extension__ using UnsignedWide = unsigned __int128;

template <class T>
std::uint64_t bits_of(T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
double number(T value) {
  return static_cast<double>(static_cast<Accumulator<T>>(value));
}

template <class T>
T from_bits(std::uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

// Sums and products of narrow and float operands are accurate enough in double. Rounding them to
// float, and from there to the dtype, gives the result of the exact value.
template <class T>
T rounded(double value) {
  return static_cast<T>(static_cast<Accumulator<T>>(value));
}

// Returns the NaN that max returns, or that of min, which has the other sign.
template <class T>
T nan(bool largest) {
  const std::uint64_t sign = bits_of(rounded<T>(-0.0));
  return from_bits<T>(bits_of(rounded<T>(NAN)) | (largest ? 0 : sign));
}

template <class T>
T expected(Reduction reduction, T a, T b) {
  const bool largest = reduction == Reduction::max;
  if constexpr (std::is_integral_v<T>) {
    if (reduction == Reduction::prod)
      return static_cast<T>(static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b));
    if (reduction == Reduction::max || reduction == Reduction::min)
      return (largest ? Wide{a} > Wide{b} : Wide{a} < Wide{b}) ? a : b;
    return static_cast<T>(Wide{a} + Wide{b});
  } else {
    const double x = number(a), y = number(b);
    if (reduction == Reduction::prod) return rounded<T>(x * y);
    if (reduction != Reduction::max && reduction != Reduction::min) return rounded<T>(x + y);
    if (std::isnan(x) || std::isnan(y)) return nan<T>(largest);
    if (x == y) return std::signbit(x) == largest ? b : a;  // the wanted one of equal zeros
    return (largest ? x > y : x < y) ? a : b;
  }
}

class Reductions : public OnDevice {
 protected:
  static constexpr std::size_t size = 300;

  // Integers have random bits. The operands begin with all pairs of the extremes.
  template <class T>
  std::vector<T> inputs(bool left = true) {
    std::vector<T> values(size);
    for (T& value : values) {
      if constexpr (std::is_integral_v<T>) {
        value = static_cast<T>(generator_());
      } else {
        value = rounded<T>(std::uniform_real_distribution<double>(-2, 2)(generator_));
      }
    }
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      const T edges[] = {Limits::max(), Limits::min(), static_cast<T>(-1), 1};
      for (std::size_t i = 0; i < 16; ++i) values[i] = edges[left ? i % 4 : i / 4];
    }
    return values;
  }

  template <class T>
  std::vector<T> download(const Memory& memory) {
    std::vector<T> values(memory.bytes() / sizeof(T));
    device_->stream().copy(values.data(), memory.data(), memory.bytes());
    device_->stream().synchronize();
    return values;
  }

  // Returns memory with a pattern that no kernel writes.
  template <class T>
  Memory untouched() {
    std::vector<T> values(size);
    std::memset(static_cast<void*>(values.data()), 0xa5, size * sizeof(T));
    return upload(values);
  }

  template <class T>
  static T* at(const Memory& memory, std::size_t offset) {
    return static_cast<T*>(memory.data()) + offset;
  }

  // Expects value(i) in `count` elements from `begin` on, and the pattern of untouched() elsewhere.
  template <class T, class Value>
  void expect_part(const Memory& memory, std::size_t begin, std::size_t count, Value value) {
    const std::vector<T> got = download<T>(memory);
    std::uint64_t nothing = 0;
    std::memset(&nothing, 0xa5, sizeof(T));
    for (std::size_t i = 0; i < size; ++i) {
      const bool inside = i >= begin && i < begin + count;
      ASSERT_EQ(bits_of(got[i]), inside ? bits_of(value(i - begin)) : nothing) << i;
    }
  }

  // Returns the reduction of two elements.
  template <class T>
  T reduced(Reduction reduction, T a, T b) {
    const Memory x = upload(std::vector<T>{a}), y = upload(std::vector<T>{b});
    kernels().reduce(reduction, dtype(), x.data(), y.data(), x.data(), 1);
    return download<T>(x)[0];
  }
};

TEST_P(Reductions, AnyCountAtAnyAddressToOneTarget) {
  visit_every(dtype(), [&]<class T>(T) {
    const std::vector<T> x = inputs<T>(), y = inputs<T>(false);
    const Memory a = upload(x), b = upload(y);
    for (const Reduction reduction : all_reductions)
      for (const std::size_t count : {0, 1, 7, 64, 250})
        for (const std::size_t offset : {0, 1, 3, 32}) {
          SCOPED_TRACE(fmt::format("{} x {} at {}", name(reduction), count, offset));
          const Memory out = untouched<T>();
          kernels().reduce(reduction, dtype(), a.data(), at<T>(b, offset), at<T>(out, offset),
                           static_cast<std::int64_t>(count));
          expect_part<T>(out, offset, count,
                         [&](std::size_t i) { return expected(reduction, x[i], y[i + offset]); });
          if (HasFatalFailure()) return;
        }
    const Memory in_place = upload(x);
    kernels().reduce(Reduction::prod, dtype(), in_place.data(), b.data(), in_place.data(), size);
    const std::vector<T> got = download<T>(in_place);
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_EQ(bits_of(got[i]), bits_of(expected(Reduction::prod, x[i], y[i])));
  });
}

TEST_P(Reductions, ToSeveralTargets) {
  visit_every(dtype(), [&]<class T>(T) {
    const std::vector<T> x = inputs<T>(), y = inputs<T>(false);
    const Memory a = upload(x), b = upload(y);
    for (const Reduction reduction : all_reductions)
      for (const Store store : {Store::cached, Store::streaming})
        for (const std::size_t count : {0, 1, 7, 64, 250})
          for (const std::size_t offset : {0, 3, 32})
            for (const std::size_t other : {0, 3, 32}) {
              SCOPED_TRACE(fmt::format("{} x {} at {}, {}", name(reduction), count, offset, other));
              const Memory first = untouched<T>(), second = untouched<T>();
              void* const outs[] = {at<T>(first, offset), at<T>(second, other)};
              const void* const ins[] = {at<T>(a, offset), at<T>(b, other)};
              kernels().reduce_to_all(reduction, dtype(), ins, outs,
                                      static_cast<std::int64_t>(count), store);
              const auto value = [&](std::size_t i) {
                return expected(reduction, x[i + offset], y[i + other]);
              };
              expect_part<T>(first, offset, count, value);
              expect_part<T>(second, other, count, value);
              if (HasFatalFailure()) return;
            }
  });
}

// Of any number of values, rounded after each. The own value of a rank may be the target.
TEST_P(Reductions, OfManyValues) {
  visit_every(dtype(), [&]<class T>(T) {
    if (!device_->readable_by_host()) {  // a GPU reduces two values at a time
      const Memory a = upload(inputs<T>());
      const void* const ins[] = {a.data(), a.data(), a.data()};
      void* const outs[] = {a.data()};
      EXPECT_THROW(kernels().reduce_to_all(Reduction::sum, dtype(), ins, outs, 1),
                   std::logic_error);
      return;
    }
    const std::vector<const void*> none(5, nullptr);  // a share of no elements has no memory
    void* const nowhere[] = {nullptr};
    kernels().reduce_to_all(Reduction::sum, dtype(), none, nowhere, 0);
    for (const Reduction reduction : all_reductions)
      for (const Store store : {Store::cached, Store::streaming})
        for (const std::size_t values : {3, 4, 5, 7, 8, 11})
          for (const std::size_t count : {1, 7, 64, 250}) {
            SCOPED_TRACE(fmt::format("{} of {} x {}", name(reduction), values, count));
            std::vector<std::vector<T>> x;
            std::vector<Memory> memory;
            std::vector<const void*> ins;
            for (std::size_t i = 0; i < values; ++i) {
              x.push_back(inputs<T>(i % 2 == 0));
              ins.push_back(at<T>(memory.emplace_back(upload(x.back())), i % 3));
            }
            const Memory other = untouched<T>();
            void* const own = const_cast<void*>(ins[values - 2]);
            void* const outs[] = {own, at<T>(other, (values - 2) % 3)};
            kernels().reduce_to_all(reduction, dtype(), ins, std::span(outs, 1 + values % 2),
                                    static_cast<std::int64_t>(count), store);
            const auto value = [&](std::size_t i) {
              T sum = x[0][i];
              for (std::size_t k = 1; k < values; ++k)
                sum = expected(reduction, sum, x[k][i + k % 3]);
              return sum;
            };
            const std::vector<T> got = download<T>(memory[values - 2]);
            for (std::size_t i = 0; i < count; ++i)
              ASSERT_EQ(bits_of(got[i + (values - 2) % 3]), bits_of(value(i))) << i;
            if (values % 2 != 0) expect_part<T>(other, (values - 2) % 3, count, value);
            if (HasFatalFailure()) return;
          }
  });
}

TEST_P(Reductions, NeedTwoValues) {
  const Memory a = upload(std::vector<double>{1});
  const void* const ins[] = {a.data()};
  void* const outs[] = {a.data()};
  EXPECT_THROW(kernels().reduce_to_all(Reduction::sum, dtype(), ins, outs, 1), std::logic_error);
}

// The targets exceed one launch of a GPU.
TEST_P(Reductions, ToManyTargets) {
  visit_every(dtype(), [&]<class T>(T) {
    const std::vector<T> x = inputs<T>(), y = inputs<T>(false);
    const Memory a = upload(x), b = upload(y);
    std::vector<Memory> memory;
    std::vector<void*> outs;
    for (int i = 0; i < 19; ++i) outs.push_back(at<T>(memory.emplace_back(untouched<T>()), 1));
    const void* const ins[] = {at<T>(a, 1), at<T>(b, 1)};
    kernels().reduce_to_all(Reduction::sum, dtype(), ins, outs, 250);
    for (const Memory& one : memory)
      expect_part<T>(one, 1, 250,
                     [&](std::size_t i) { return expected(Reduction::sum, x[i + 1], y[i + 1]); });
  });
}

// NaN wins with any sign and payload, as either operand. -0 is below +0. The order of operands does
// not matter.
TEST_P(Reductions, ExtremesOfSpecialNumbers) {
  if (!is_floating(dtype())) GTEST_SKIP() << "integers have none";
  visit_every(dtype(), [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) return;
    const double infinity = INFINITY;
    std::vector<T> specials = {rounded<T>(NAN)};
    for (const double value : {0.0, -0.0, 1.0, -1.0, 2.5, -2.5, infinity, -infinity})
      specials.push_back(rounded<T>(value));
    for (const double base : {0.0, -0.0, infinity, -infinity})
      for (const std::uint64_t payload : {1, 5})  // subnormal numbers, and NaN of many patterns
        specials.push_back(from_bits<T>(bits_of(rounded<T>(base)) | payload));
    for (const Reduction reduction : {Reduction::max, Reduction::min})
      for (const T& a : specials)
        for (const T& b : specials) {
          ASSERT_EQ(bits_of(reduced(reduction, a, b)), bits_of(expected(reduction, a, b)))
              << name(reduction) << " of " << number(a) << " and " << number(b);
          ASSERT_EQ(bits_of(expected(reduction, b, a)), bits_of(expected(reduction, a, b)));
        }
  });
}

TEST_P(Reductions, DivideRoundsOnceOrTruncates) {
  visit_every(dtype(), [&]<class T>(T) {
    for (const std::int64_t divisor : {1, 2, 3, 7, 41, 49, 64, 127, 128, 255, 256, 1000, 1 << 20}) {
      std::vector<T> x = inputs<T>();
      if constexpr (std::is_integral_v<T>) {
        // Values next to multiples. Any error of the quotient truncates to a wrong result there.
        for (std::size_t i = 20; i < size; ++i)
          x[i] = static_cast<T>(Wide{x[i]} / divisor * divisor + static_cast<int>(i % 3) - 1);
        if (sizeof(T) == 1)
          for (std::size_t i = 0; i < size; ++i) x[i] = static_cast<T>(i);
      }
      const Memory data = upload(x);
      for (const std::size_t count : {0, 1, 7, 64, 250})
        for (const std::size_t offset : {0, 1, 3}) {
          SCOPED_TRACE(fmt::format("{} / {} at {}", count, divisor, offset));
          device_->stream().copy(data.data(), x.data(), data.bytes());
          kernels().divide(dtype(), at<T>(data, offset), static_cast<std::int64_t>(count), divisor);
          const std::vector<T> got = download<T>(data);
          Values quotients;
          std::vector<Real> exact;
          for (std::size_t i = 0; i < size; ++i) {
            if (i < offset || i >= offset + count) {
              ASSERT_EQ(bits_of(got[i]), bits_of(x[i])) << i;
            } else if constexpr (std::is_integral_v<T>) {
              ASSERT_EQ(got[i], static_cast<T>(Wide{x[i]} / divisor)) << +x[i];
            } else {
              quotients.push_back(number(got[i]));
              exact.push_back(static_cast<Real>(number(x[i])) / static_cast<Real>(divisor));
            }
          }
          expect_within(quotients, exact, std::vector<Real>(exact.size(), 0), dtype());
          if (HasFatalFailure()) return;
        }
    }
  });
  EXPECT_THROW(kernels().divide(dtype(), nullptr, 0, 0), std::logic_error);
  EXPECT_THROW(kernels().divide(dtype(), nullptr, 0, -2), std::logic_error);
}

template <class To, class From>
To expected_cast(From from) {
  if constexpr (!std::is_integral_v<To>) {
    // long double represents the values of all other dtypes.
    return static_cast<To>(
        static_cast<Accumulator<To>>(static_cast<Real>(static_cast<Accumulator<From>>(from))));
  } else if constexpr (std::is_integral_v<From>) {
    return static_cast<To>(Wide{from});
  } else {
    using Limits = std::numeric_limits<To>;
    const Real whole = std::trunc(static_cast<Real>(number(from)));
    if (std::isnan(whole)) return 0;
    if (whole > static_cast<Real>(Limits::max())) return Limits::max();
    if (whole < static_cast<Real>(Limits::min())) return Limits::min();
    return static_cast<To>(whole);
  }
}

TEST_P(Reductions, CastToEveryDtype) {
  visit_every(dtype(), [&]<class From>(From) {
    std::vector<From> x = inputs<From>();
    if constexpr (!std::is_integral_v<From>) {
      for (std::size_t i = 0; i < 128; ++i)  // powers of two of both signs, and their neighbours
        x[i] = rounded<From>((i % 2 ? -1 : 1) *
                             std::ldexp(1 + number(x[i]) * 0x1p-8, static_cast<int>(i / 2) + 2));
      for (std::size_t i = 128; i < 192; ++i)
        x[i] = rounded<From>((i % 2 ? -1 : 1) * std::ldexp(1, static_cast<int>(i - 128) / 2 * 2));
      const double edges[] = {0,     -0.0,      -0.99,    127.5, -128.5,
                              255.5, -INFINITY, INFINITY, NAN,   1e300};
      for (std::size_t i = 0; i < std::size(edges); ++i) x[200 + i] = rounded<From>(edges[i]);
    }
    Tensor in(*device_, dtype(), {size}, Category::buffers);
    device_->stream().copy(in.data(), x.data(), in.bytes());
    for (const Dtype to : every_dtype) {
      const Tensor out = empty({size}, to);
      kernels().cast(in, out);
      visit_every(to, [&]<class To>(To) {
        std::vector<To> got(size);
        device_->stream().copy(got.data(), out.data(), out.bytes());
        device_->stream().synchronize();
        for (std::size_t i = 0; i < size; ++i) {
          const To want = expected_cast<To>(x[i]);
          if (!std::is_integral_v<To> && std::isnan(number(want))) {
            ASSERT_TRUE(std::isnan(number(got[i]))) << i;
          } else {
            ASSERT_EQ(bits_of(got[i]), bits_of(want))
                << number(x[i]) << " to " << name(to) << ": " << number(got[i]);
          }
        }
      });
    }
  });
}

TEST_P(Reductions, FillRoundsAsCastDoes) {
  for (const double value : {0.0, 3.7, -1.0, 300.0, 1e20}) {
    const Tensor out = empty({129});
    kernels().fill(out, value);
    visit_every(dtype(), [&](auto zero) {
      const double want = number(expected_cast<decltype(zero)>(value));
      EXPECT_EQ(to_doubles(out), Values(129, want));
    });
  }
}

TEST_P(Reductions, OnlySomeKernelsTakeEveryDtype) {
  if (has_every_kernel(dtype())) GTEST_SKIP() << "this is one";
  const Tensor x = random({4, 4}), y = random({4, 4});
  EXPECT_THROW(kernels().add(x, y, y), std::logic_error);
  EXPECT_THROW(kernels().accumulate(x, y), std::logic_error);
  EXPECT_THROW(kernels().fill_normal(x, 1, {}, 0, 1), std::logic_error);
  EXPECT_THROW(kernels().gelu(x, y), std::logic_error);
  EXPECT_THROW(kernels().softmax(x, 1, {}, y), std::logic_error);
  EXPECT_THROW(kernels().sum(x, random({1}, Dtype::float64)), std::logic_error);
  EXPECT_THROW(kernels().sgd(random({16}, Dtype::float32), 1, 1, random({16}, Dtype::float32), x),
               std::logic_error);
  EXPECT_THROW(gemm(device_->stream(), matrix(x), matrix(x), matrix(y)), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE_IN(Reductions, every_dtype);

}  // namespace
}  // namespace machine
