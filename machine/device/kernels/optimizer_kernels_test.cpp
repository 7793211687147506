#include "machine/device/kernels/optimizer_kernels.h"

#include <bit>
#include <cstdint>
#include <vector>

#include "machine/testing/on_device.h"

namespace machine {
namespace {

// Odd, so that vector loops have remainders; more than one block of a GPU.
constexpr std::int64_t size = 2053;

class OptimizerKernels : public OnDevice {
 protected:
  double u() const { return sum_roundoff(dtype()); }
  void expect_rounded(const Tensor& master, const Tensor& weight) {
    const Tensor rounded = empty({size});
    kernels().cast(master, rounded);
    EXPECT_EQ(hash(weight), hash(rounded));
  }
  static std::vector<std::uint8_t> every_third() {
    std::vector<std::uint8_t> mask(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
    return mask;
  }
};

TEST_P(OptimizerKernels, SgdStep) {
  const Tensor gradient = random({size}, wide()), master = random({size}, wide());
  const Tensor weight = empty({size});
  const Values g = to_doubles(gradient), before = to_doubles(master);
  kernels().sgd(gradient, 0.25, 0.1, master, weight);
  const auto after = [&](std::size_t i) { return before[i] - 0.1L * (0.25L * g[i]); };
  expect(master, after, [&](auto i) { return 4 * u() * (std::abs(g[i]) + std::abs(before[i])); });
  expect_rounded(master, weight);
}

TEST_P(OptimizerKernels, AdamwSteps) {
  const Tensor master = random({size}, wide()), weight = empty({size});
  const Tensor first = empty({size}, wide()), second = empty({size}, wide());
  kernels().fill(first, 0);
  kernels().fill(second, 0);
  const std::vector<std::uint8_t> mask = every_third();
  const Memory device_mask = upload(mask);
  const AdamW options{
      .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  for (int step = 1; step <= 3; ++step) {
    const Tensor gradient = random({size}, wide());
    const Values g = to_doubles(gradient), w = to_doubles(master), m = to_doubles(first),
                 v = to_doubles(second);
    kernels().adamw(gradient, 0.5, options, step, static_cast<std::uint8_t*>(device_mask.data()),
                    master, first, second, weight);
    const Real b1 = options.beta1, b2 = options.beta2, p1 = std::pow(b1, step),
               p2 = std::pow(b2, step);
    const auto new_m = [&](auto i) { return b1 * m[i] + (1 - b1) * (0.5L * g[i]); };
    const auto new_v = [&](auto i) { return b2 * v[i] + (1 - b2) * (0.25L * g[i] * g[i]); };
    // The terms of one sum have three roundoffs each, the sum has one (including the rounding of
    // the betas).
    const auto m_error = [&](auto i) { return 4 * u() * (std::abs(m[i]) + std::abs(g[i])); };
    const auto v_error = [&](auto i) { return 6 * u() * new_v(i); };
    expect(first, new_m, m_error);
    expect(second, new_v, v_error);
    // The corrections 1 - beta^step cancel digits of a power that is accurate to a roundoff of
    // double.
    const Real cancelled = 0x1p-52L * (p1 / (1 - p1) + p2 / (1 - p2));
    const Real rate = options.learning_rate, decay = options.weight_decay;
    expect(
        master,
        [&](auto i) {
          const Real direction =
              new_m(i) / (1 - p1) / (std::sqrt(new_v(i) / (1 - p2)) + Real{options.epsilon});
          return w[i] - rate * (direction + (mask[i] ? decay * w[i] : 0));
        },
        [&](auto i) {
          const Real denominator = std::sqrt(new_v(i) / (1 - p2));
          const Real numerator = std::abs(new_m(i)) / (1 - p1);
          const Real m_part = m_error(i) / (1 - p1) + 3 * u() * numerator;
          const Real direction =
              m_part / denominator + (8 * u() + cancelled) * numerator / denominator;
          const Real step_size = numerator / denominator + decay * std::abs(w[i]);
          return 1.01L * (rate * (direction + 5 * u() * step_size) + u() * std::abs(w[i]));
        });
    expect_rounded(master, weight);
  }
}

// Two products and a sum for the gradient with decay, and the same for the velocity.
TEST_P(OptimizerKernels, MomentumStep) {
  const Tensor gradient = random({size}, wide()), master = random({size}, wide()),
               velocity = random({size}, wide()), weight = empty({size});
  const Values g = to_doubles(gradient), w = to_doubles(master), v = to_doubles(velocity);
  const std::vector<std::uint8_t> mask = every_third();
  const Memory device_mask = upload(mask);
  const Momentum options{0.1, 0.9, 0.2};
  kernels().momentum(gradient, 0.5, options, static_cast<std::uint8_t*>(device_mask.data()), master,
                     velocity, weight);
  const auto new_v = [&](auto i) {
    return 0.9L * v[i] + (0.5L * g[i] + (mask[i] ? 0.2L * w[i] : 0));
  };
  const auto terms = [&](auto i) { return std::abs(v[i]) + std::abs(g[i]) + std::abs(w[i]); };
  expect(velocity, new_v, [&](auto i) { return 5 * u() * terms(i); });
  expect(
      master, [&](auto i) { return w[i] - 0.1L * new_v(i); },
      [&](auto i) { return 1.01L * (0.1L * 7 * u() * terms(i) + u() * std::abs(w[i])); });
  expect_rounded(master, weight);
}

// Gradients and weights are positive, so that no digit cancels.
TEST_P(OptimizerKernels, RmsPropStep) {
  const Tensor gradient = random({size}, wide(), 0.1, 2), master = random({size}, wide(), 0.5, 2),
               second = random({size}, wide(), 0, 2), weight = empty({size});
  const Values g = to_doubles(gradient), w = to_doubles(master), v = to_doubles(second);
  const std::vector<std::uint8_t> mask = every_third();
  const Memory device_mask = upload(mask);
  const RmsProp options{0.1, 0.99, 1e-3, 0.2};
  kernels().rmsprop(gradient, 0.5, options, static_cast<std::uint8_t*>(device_mask.data()), master,
                    second, weight);
  const auto decayed = [&](auto i) { return 0.5L * g[i] + (mask[i] ? 0.2L * w[i] : 0); };
  const auto new_v = [&](auto i) {
    return Real{0.99} * v[i] + (1 - Real{0.99}) * decayed(i) * decayed(i);
  };
  const auto direction = [&](auto i) { return decayed(i) / (std::sqrt(new_v(i)) + Real{1e-3}); };
  // The decayed gradient has 3 roundoffs, its square 7, the moment 10, the root 6, the quotient 13.
  expect(second, new_v, [&](auto i) { return 10.1L * u() * new_v(i); });
  expect(
      master, [&](auto i) { return w[i] - Real{0.1} * direction(i); },
      [&](auto i) { return 1.01L * (0.1L * 15 * u() * direction(i) + u() * std::abs(w[i])); });
  expect_rounded(master, weight);
}

// A sum that is smaller than its error may have any sign.
TEST_P(OptimizerKernels, LionStep) {
  const Tensor gradient = random({size}, wide()), master = random({size}, wide()),
               first = random({size}, wide()), weight = empty({size});
  const Values g = to_doubles(gradient), w = to_doubles(master), m = to_doubles(first);
  const std::vector<std::uint8_t> mask = every_third();
  const Memory device_mask = upload(mask);
  kernels().lion(gradient, 0.5, {0.1, 0.9, 0.99, 0.2},
                 static_cast<std::uint8_t*>(device_mask.data()), master, first, weight);
  const auto sum = [&](Real beta, auto i) { return beta * m[i] + (1 - beta) * (0.5L * g[i]); };
  const auto sum_error = [&](auto i) { return 4 * u() * (std::abs(m[i]) + std::abs(g[i])); };
  const auto direction = [&](auto i) {
    return (sum(Real{0.9}, i) > 0 ? 1 : -1) + (mask[i] ? Real{0.2} * w[i] : 0);
  };
  expect(
      first, [&](auto i) { return sum(Real{0.99}, i); }, sum_error);
  expect(
      master, [&](auto i) { return w[i] - Real{0.1} * direction(i); },
      [&](auto i) {
        const Real unknown = std::abs(sum(Real{0.9}, i)) > sum_error(i) ? 0 : 2;
        return 1.01L *
               (Real{0.1} * (unknown + 5 * u() * (1 + std::abs(w[i]))) + u() * std::abs(w[i]));
      });
  expect_rounded(master, weight);
  // An update by NaN must not look like one by zero.
  kernels().fill(gradient, std::numeric_limits<double>::quiet_NaN());
  kernels().lion(gradient, 1, {}, nullptr, master, first, weight);
  EXPECT_TRUE(std::isnan(to_doubles(master)[0]));
}

// Adam with decay equals AdamW without decay on a gradient that includes the decay.
TEST_P(OptimizerKernels, AdamTakesTheDecayIntoTheGradient) {
  const Tensor start = random({size}, wide()), gradient = random({size}, wide());
  const std::vector<std::uint8_t> mask = every_third();
  const Memory device_mask = upload(mask);
  Values g = to_doubles(gradient);
  const Values w = to_doubles(start);
  // Factors are powers of two. Only the one sum rounds, once in the kernel and once here.
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = 0.5 * g[i] + (mask[i] ? 0.25 * w[i] : 0);
  const Tensor decayed = empty({size}, wide());
  from_doubles(decayed, g);
  const auto hashes = [&](auto step) {
    const Tensor master = empty({size}, wide()), first = empty({size}, wide()),
                 second = empty({size}, wide()), weight = empty({size});
    kernels().cast(start, master);
    kernels().fill(first, 0);
    kernels().fill(second, 0);
    step(master, first, second, weight);
    expect_rounded(master, weight);
    return std::vector{hash(master), hash(first), hash(second)};
  };
  const auto adam = hashes([&](auto&... tensors) {
    kernels().adam(gradient, 0.5, {0.1, 0.9, 0.95, 1e-6, 0.25}, 3,
                   static_cast<std::uint8_t*>(device_mask.data()), tensors...);
  });
  const auto adamw = hashes([&](auto&... tensors) {
    kernels().adamw(decayed, 1, {0.1, 0.9, 0.95, 1e-6, 0}, 3, nullptr, tensors...);
  });
  EXPECT_EQ(adam, adamw);
}

// Weights that are their own master, with decay everywhere, get the same bits as with a mask of
// ones.
TEST_P(OptimizerKernels, InPlaceAndWithoutAMask) {
  const Tensor gradient = random({size}, wide()), master = random({size}, wide()),
               same = empty({size}, wide()), first = random({size}, wide()),
               second = random({size}, wide(), 0, 1), weight = empty({size}, wide());
  const Tensor same_first = empty({size}, wide()), same_second = empty({size}, wide());
  kernels().cast(master, same);
  kernels().cast(first, same_first);
  kernels().cast(second, same_second);
  const Memory ones = upload(std::vector<std::uint8_t>(static_cast<std::size_t>(size), 1));
  kernels().adamw(gradient, 0.5, {}, 2, static_cast<std::uint8_t*>(ones.data()), master, first,
                  second, weight);
  kernels().adamw(gradient, 0.5, {}, 2, nullptr, same, same_first, same_second, same);
  EXPECT_EQ(hash(same), hash(weight));
  EXPECT_EQ(hash(same), hash(master));
  EXPECT_EQ(hash(same_second), hash(second));
}

// Also numbers without a finite rounding, NaN of any bits, the end of the range, and so many
// elements that the host's weights bypass the cache.
TEST_P(OptimizerKernels, NarrowWeightsAreRoundedAsByCasts) {
  if (!is_narrow()) return;  // wide weights are their own master
  for (const std::int64_t count : {1037, device_->readable_by_host() ? 8'000'037 : 40'037}) {
    std::vector<float> bits(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < bits.size(); ++i)  // of all exponents
      bits[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i) * 0x9e3779b9u);
    const Tensor master(upload(bits), Dtype::float32, {count});
    const Tensor gradient = empty({count}, Dtype::float32), weight = empty({count}),
                 cast = empty({count});
    kernels().fill(gradient, 0);
    kernels().sgd(gradient, 1, 0.1, master, weight);
    kernels().cast(master, cast);
    EXPECT_EQ(hash(weight), hash(cast));
  }
}

// A gradient in the dtype of narrower weights gives the bits of the same gradient in float.
TEST_P(OptimizerKernels, NarrowGradients) {
  const Tensor gradient = random({size}), wide_gradient = empty({size}, wide()),
               start = random({size}, wide(), 0.5, 2);
  kernels().cast(gradient, wide_gradient);
  const Memory mask = upload(every_third());
  const auto* const decays = static_cast<std::uint8_t*>(mask.data());
  const auto hashes = [&](const Tensor& g) {
    std::vector<std::uint64_t> all;
    const auto run = [&](auto step) {
      const Tensor master = empty({size}, wide()), first = empty({size}, wide()),
                   second = empty({size}, wide()), weight = empty({size});
      kernels().cast(start, master);
      kernels().fill(first, 0.25);
      kernels().fill(second, 0.5);
      step(master, first, second, weight);
      for (const Tensor& tensor : {master, first, second, weight}) all.push_back(hash(tensor));
    };
    run([&](auto& w, auto&, auto&, auto& v) { kernels().sgd(g, 0.5, 0.1, w, v); });
    run([&](auto& w, auto& m, auto&, auto& v) {
      kernels().momentum(g, 0.5, {0.1, 0.9, 0.2}, decays, w, m, v);
    });
    run([&](auto& w, auto&, auto& s, auto& v) {
      kernels().rmsprop(g, 0.5, {0.1, 0.99, 1e-3, 0.2}, decays, w, s, v);
    });
    run([&](auto& w, auto& m, auto&, auto& v) { kernels().lion(g, 0.5, {}, decays, w, m, v); });
    run([&](auto& w, auto& m, auto& s, auto& v) {
      kernels().adam(g, 0.5, {}, 2, decays, w, m, s, v);
    });
    run([&](auto& w, auto& m, auto& s, auto& v) {
      kernels().adamw(g, 0.5, {}, 2, nullptr, w, m, s, v);
    });
    return all;
  };
  EXPECT_EQ(hashes(gradient), hashes(wide_gradient));
}

TEST_P(OptimizerKernels, MismatchesAreRejected) {
  const Tensor a = random({5}, wide()), b = random({6}, wide());
  EXPECT_THROW(kernels().sgd(a, 1, 1, a, b), std::logic_error);
  EXPECT_THROW(kernels().momentum(a, 1, {}, nullptr, a, b, a), std::logic_error);
  const Dtype other = wide() == Dtype::float64 ? Dtype::float32 : Dtype::float64;
  EXPECT_THROW(kernels().sgd(a, 1, 1, a, random({5}, other)), std::logic_error);
}

SHARDMARK_ON_EVERY_DEVICE(OptimizerKernels);

}  // namespace
}  // namespace machine
