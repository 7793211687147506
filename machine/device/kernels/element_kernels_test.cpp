#include "machine/device/kernels/element_kernels.h"

#include <numbers>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

class ElementKernels : public OnDevice {
 protected:
  double u() const { return sum_roundoff(dtype()); }
};

// Odd, so that vector loops have remainders; more than one block of a GPU.
constexpr std::int64_t size = 2053;

Real tanh_gelu(Real x) {
  const Real u = std::sqrt(2 / std::numbers::pi_v<Real>) * (x + 0.044715L * x * x * x);
  return 0.5L * x * (1 + std::tanh(u));
}

Real tanh_gelu_slope(Real x) {
  const Real c = std::sqrt(2 / std::numbers::pi_v<Real>);
  const Real t = std::tanh(c * (x + 0.044715L * x * x * x));
  return 0.5L * (1 + t) + 0.5L * x * (1 - t * t) * c * (1 + 3 * 0.044715L * x * x);
}

TEST(Exponential, IsWithinFourRoundoffs) {
  double worst = 0;
  for (double x = -87; x < 88.7; x += 1.1e-4) {
    const float argument = static_cast<float>(x);
    const double exact = std::exp(double{argument});
    worst = std::max(worst, std::abs(kernel::exponential(argument) - exact) / exact);
  }
  EXPECT_LE(worst, 4 * 0x1p-24);
  EXPECT_GE(worst, 0x1p-25) << "too good to have been measured";
}

TEST(Exponential, AtItsEdges) {
  EXPECT_EQ(kernel::exponential(0.0f), 1.0f);
  EXPECT_EQ(kernel::exponential(INFINITY), INFINITY);
  EXPECT_EQ(kernel::exponential(89.0f), INFINITY);
  EXPECT_EQ(kernel::exponential(-INFINITY), 0.0f);
  EXPECT_EQ(kernel::exponential(-1e30f), 0.0f);
  EXPECT_TRUE(std::isnan(kernel::exponential(NAN)));
  for (float x = -103; x < -87.5; x += 0.01f) {  // subnormal results: one more rounding
    ASSERT_NEAR(kernel::exponential(x), std::exp(double{x}), 0x1p-150 + 4 * 0x1p-149);
  }
}

TEST_P(ElementKernels, FillAndCast) {
  const Tensor constant = empty({size});
  kernels().fill(constant, 0.3);
  expect(
      constant, [](auto) { return 0.3L; }, [&](auto) { return u() * 0.3; });
  const Tensor in = random({size});
  const Values x = to_doubles(in);
  for (const Dtype to : floating_dtypes) {
    const Tensor out = empty({size}, to);
    kernels().cast(in, out);
    // double is cast to the narrow types through float.
    const double middle = size_of(to) == 2 ? 0x1p-24 : 0;
    expect(
        out, [&](auto i) { return x[i]; }, [&](auto i) { return middle * std::abs(x[i]); });
  }
}

TEST_P(ElementKernels, SumsAndProducts) {
  const Tensor a = random({size}), b = random({size}), out = empty({size});
  const Values x = to_doubles(a), y = to_doubles(b);
  kernels().add(a, b, out);
  const auto sum = [&](std::size_t i) { return Real{x[i]} + y[i]; };
  const auto sum_error = [&](std::size_t i) { return u() * std::abs(sum(i)); };
  expect(out, sum, sum_error);

  kernels().scale(a, 0.7, out);
  const auto product = [&](std::size_t i) { return 0.7L * x[i]; };
  expect(out, product, [&](auto i) { return 2 * u() * std::abs(product(i)); });

  kernels().triad(a, b, 0.7, out);
  expect(
      out, [&](auto i) { return x[i] + 0.7L * y[i]; },
      [&](auto i) { return u() * (std::abs(sum(i)) + 4 * std::abs(y[i])); });

  kernels().add(a, b, a);  // in place
  expect(a, sum, sum_error);
  kernels().scale(b, -3, b);
  expect(
      b, [&](auto i) { return -3 * Real{y[i]}; }, [&](auto i) { return 3 * u() * std::abs(y[i]); });
}

TEST_P(ElementKernels, AccumulateIntoEqualOrWiderSums) {
  for (const Dtype to : sums()) {
    const Tensor in = random({size}), out = random({size}, to);
    const Values x = to_doubles(in), before = to_doubles(out);
    kernels().accumulate(in, out);
    const auto sum = [&](std::size_t i) { return Real{x[i]} + before[i]; };
    expect(out, sum, [&](auto i) { return u() * std::abs(sum(i)); });
  }
}

TEST_P(ElementKernels, ReduceAnyCountAtAnyAddress) {
  const Tensor a = random({300}), b = random({300});
  const Values x = to_doubles(a), y = to_doubles(b);
  for (const std::int64_t count : {0, 1, 7, 64, 129, 250}) {
    for (const std::int64_t offset : {0, 1, 3, 16}) {
      const Tensor out = empty({300});
      const auto at = [&](const Tensor& t) {
        return static_cast<char*>(t.data()) + static_cast<std::size_t>(offset) * size_of(dtype());
      };
      const auto part = [&](std::size_t i) { return i + static_cast<std::size_t>(offset); };
      kernels().reduce(Reduction::sum, dtype(), at(a), at(b), at(out), count);
      const Tensor view = out.slice(offset, {count});
      const auto sum = [&](std::size_t i) { return Real{x[part(i)]} + y[part(i)]; };
      expect(view, sum, [&](auto i) { return u() * std::abs(sum(i)); });
      kernels().reduce(Reduction::max, dtype(), at(a), at(b), at(out), count);
      const auto top = [&](std::size_t i) { return Real{std::max(x[part(i)], y[part(i)])}; };
      expect(view, top, [](auto) { return 0; });
      const Values all = to_doubles(out);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool inside = i >= part(0) && i < part(static_cast<std::size_t>(count));
        ASSERT_EQ(std::isnan(all[i]), !inside) << i;
      }
    }
  }
  const Tensor copy = random({300});
  from_doubles(copy, x);
  kernels().reduce(Reduction::sum, dtype(), copy.data(), b.data(), copy.data(), 300);
  expect(
      copy, [&](auto i) { return Real{x[i]} + y[i]; },
      [&](auto i) { return u() * std::abs(x[i] + y[i]); });
}

// Targets with equal or different alignment, cached or streaming, get the same sums. No other
// element changes.
TEST_P(ElementKernels, ReduceToSeveralTargets) {
  const Tensor a = random({300}), b = random({300}), wanted = empty({300});
  kernels().reduce(Reduction::sum, dtype(), a.data(), b.data(), wanted.data(), 300);
  for (const Store store : {Store::cached, Store::streaming})
    for (const std::int64_t count : {0, 1, 64, 129, 250})
      for (const std::int64_t offset : {0, 3, 32})
        for (const std::int64_t other : {0, 3, 32}) {
          const Tensor first = empty({300}), second = empty({300});
          const auto at = [&](const Tensor& t, std::int64_t begin) {
            return static_cast<char*>(t.data()) +
                   static_cast<std::size_t>(begin) * size_of(dtype());
          };
          void* const outs[] = {at(first, offset), at(second, other)};
          const void* const ins[] = {at(a, offset), at(b, offset)};
          kernels().reduce_to_all(Reduction::sum, dtype(), ins, outs, count, store);
          const Values sums = to_doubles(wanted);
          for (const auto& [tensor, begin] : {std::pair{&first, offset}, {&second, other}}) {
            const Values got = to_doubles(*tensor);
            for (std::int64_t i = 0; i < 300; ++i) {
              const auto value = got[static_cast<std::size_t>(i)];
              if (i >= begin && i < begin + count) {
                ASSERT_EQ(value, sums[static_cast<std::size_t>(i - begin + offset)]) << i;
              } else {
                ASSERT_TRUE(std::isnan(value)) << i;
              }
            }
          }
        }
}

// An element has the same bits in a vector loop, in its remainder and in a shard.
TEST_P(ElementKernels, ShardsHaveTheBitsOfTheWhole) {
  const Tensor x = random({size}, -4, 4), slope = random({size});
  const Tensor whole = empty({size}), parts = empty({size});
  const auto run = [&](const Tensor& in, const Tensor& d, const Tensor& out) {
    kernels().gelu_backward(in, d, out);
    kernels().triad(out, d, 0.3, out);
  };
  run(x, slope, whole);
  for (std::int64_t begin = 0; begin < size;) {
    const std::int64_t count = std::min<std::int64_t>(1 + begin % 97, size - begin);
    const auto part = [&](const Tensor& t) { return t.slice(begin, {count}); };
    run(part(x), part(slope), part(parts));
    begin += count;
  }
  EXPECT_EQ(hash(whole), hash(parts));
}

// Roundoffs of x / (1 + e^-t): 7 of t, which the exponential turns into 7|t|, 4 of the exponential,
// and one per operation.
TEST_P(ElementKernels, Gelu) {
  const Tensor x = random({size}, -6, 6), out = empty({size});
  const Values v = to_doubles(x);
  const auto t = [](double x) {
    return 2 * std::sqrt(2 / std::numbers::pi) * std::abs(x + 0.044715 * x * x * x);
  };
  // 1 + tanh cancels digits of the reference if tanh is near -1.
  const Real cancelled = 0x1p-61L;
  kernels().gelu(x, out);
  expect(
      out, [&](auto i) { return tanh_gelu(v[i]); },
      [&](auto i) {
        return 1.01L * (7 * t(v[i]) + 6) * u() * std::abs(tanh_gelu(v[i])) +
               cancelled * std::abs(v[i]);
      });

  const Tensor slope = random({size}), d_x = empty({size});
  const Values d = to_doubles(slope);
  kernels().gelu_backward(x, slope, d_x);
  expect(
      d_x, [&](auto i) { return d[i] * tanh_gelu_slope(v[i]); },
      [&](auto i) {
        const double sigmoid = 1 / (1 + std::exp(v[i] < 0 ? t(v[i]) : -t(v[i])));
        const double dt = 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * v[i] * v[i]);
        const double second = std::abs(v[i]) * sigmoid * (1 - sigmoid) * dt;
        const Real first_order =
            u() * (sigmoid * (7 * t(v[i]) + 8) + second * (3 * (7 * t(v[i]) + 4) + 16));
        return std::abs(d[i]) * (1.01L * first_order + cancelled * (1 + std::abs(v[i]) * dt));
      });
}

TEST_P(ElementKernels, GeluFarFromZero) {
  const Tensor x = empty({4}), one = empty({4}), out = empty({4}), slope = empty({4});
  from_doubles(x, {-60000, 60000, -0.0, -50});
  kernels().fill(one, 1);
  kernels().gelu(x, out);
  kernels().gelu_backward(x, one, slope);
  const Values exact = to_doubles(x);
  EXPECT_EQ(to_doubles(out), (Values{0, exact[1], 0, 0}));
  EXPECT_EQ(to_doubles(slope), (Values{0, 1, 0.5, 0}));
}

// The table of the host equals the formula bit for bit, for every bit pattern.
template <class T>
void expect_formula_of_every_pattern(Kernels& kernels, Device& device) {
  const Tensor x(device, dtype_of<T>, {1 << 16}, Category::buffers);
  const Tensor factor(device, dtype_of<T>, {1 << 16}, Category::buffers);
  const Tensor out(device, dtype_of<T>, {1 << 16}, Category::buffers);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) x.as<T>()[i].bits = static_cast<std::uint16_t>(i);
  kernels.fill_uniform(factor, 3, {}, -2, 2);
  kernels.gelu(x, out);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    const float value = kernel::Gelu<float>::value(static_cast<float>(x.as<T>()[i]));
    ASSERT_EQ(out.as<T>()[i].bits, T(value).bits) << "pattern " << i;
  }
  kernels.gelu_backward(x, factor, out);
  for (std::uint32_t i = 0; i < 1 << 16; ++i) {
    const float slope = kernel::Gelu<float>::derivative(static_cast<float>(x.as<T>()[i]));
    const T wanted(static_cast<float>(factor.as<T>()[i]) * slope);
    ASSERT_EQ(out.as<T>()[i].bits, wanted.bits) << "pattern " << i;
  }
}

TEST(Gelu, MatchesTheFormulaForEvery16BitPattern) {
  const auto device = make_host_device();
  expect_formula_of_every_pattern<Bfloat16>(device->stream().kernels(), *device);
  expect_formula_of_every_pattern<Half>(device->stream().kernels(), *device);
}

// The truncation of the central difference D(h) is a third of D(2h) - D(h), to fourth order.
TEST(Gradients, GeluAgainstDifferences) {
  const double h = 1e-3;
  for (double x = -5; x < 5; x += 0.37) {
    const auto difference = [&](double step) {
      return (kernel::Gelu<double>::value(x + step) - kernel::Gelu<double>::value(x - step)) /
             (2 * step);
    };
    const double bound =
        std::abs(difference(2 * h) - difference(h)) + 64 * 0x1p-53 * std::max(1.0, std::abs(x)) / h;
    EXPECT_LE(std::abs(kernel::Gelu<double>::derivative(x) - difference(h)), bound) << x;
  }
}

TEST_P(ElementKernels, CrossEntropyOfSums) {
  const Tensor sum = random({size}, wide(), 1, 900), target = random({size}, wide(), -9, 0);
  const Tensor loss = empty({size}, wide());
  const Values s = to_doubles(sum), t = to_doubles(target);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i % 3 == 1 ? -1 : static_cast<int>(i);
  const Memory targets = upload(ids);
  kernels().cross_entropy(sum, target, static_cast<std::int32_t*>(targets.data()), loss);
  expect(
      loss, [&](auto i) { return ids[i] < 0 ? Real{0} : std::log(Real{s[i]}) - t[i]; },
      [&](auto i) {
        return ids[i] < 0 ? 0 : 0x1p-52L * (std::abs(std::log(s[i])) + 2 * std::abs(t[i]));
      });
}

TEST_P(ElementKernels, MismatchesAreRejected) {
  const Tensor a = random({5}), b = random({6});
  EXPECT_THROW(kernels().add(a, b, a), std::logic_error);
  const Dtype other = dtype() == Dtype::bfloat16 ? Dtype::float16 : Dtype::bfloat16;
  EXPECT_THROW(kernels().gelu(a, random({5}, other)), std::logic_error);
  EXPECT_THROW(kernels().accumulate(a, random({5}, other)), std::logic_error);
  EXPECT_THROW(kernels().fill(Tensor(), 1), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(ElementKernels);

}  // namespace
}  // namespace machine
