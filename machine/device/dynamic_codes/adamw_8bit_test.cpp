// Compares the map with the definition of its patterns, and an update with plain loops in double.

#include "machine/device/dynamic_codes/adamw_8bit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "machine/device/dynamic_codes/adamw_8bit_host.h"
#include "machine/device/dynamic_codes/dynamic_map.h"
#include "machine/device/dynamic_codes/dynamic_tables.h"
#include "machine/device/host/launch.h"
#include "machine/testing/on_device.h"

namespace machine {
namespace {

constexpr double u = 0x1p-24;

// After the sign: zeros, a one, and bits of a fraction, each of which halves 0.1 to 1.
Values numbers_of(bool with_sign) {
  const int bits = with_sign ? 7 : 8;
  Values numbers{0, 1};
  for (int fraction_bits = bits - 7; fraction_bits < bits; ++fraction_bits) {
    const int items = 1 << fraction_bits;
    for (int i = 0; i < items; ++i) {
      const double number =
          std::pow(10, fraction_bits + 1 - bits) * (0.1 + 0.9 * (i + 0.5) / items);
      numbers.push_back(number);
      if (with_sign) numbers.push_back(-number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

template <bool is_signed>
void compare_map() {
  const Values numbers = numbers_of(is_signed);
  ASSERT_EQ(numbers.size(), 256u);
  using Map = kernel::DynamicMap<is_signed>;
  for (int code = 0; code < 256; ++code) {
    const double value = numbers[static_cast<std::size_t>(code)];
    EXPECT_NEAR(Map::value(static_cast<std::uint8_t>(code)), value, u * std::abs(value)) << code;
    EXPECT_EQ(Map::code(static_cast<float>(value)), code);
    if (code == 255) continue;
    const double middle = (value + numbers[static_cast<std::size_t>(code) + 1]) / 2,
                 off = 4 * u * std::abs(middle) + 1e-12;
    EXPECT_EQ(Map::code(static_cast<float>(middle - off)), code);
    EXPECT_EQ(Map::code(static_cast<float>(middle + off)), code + 1);
  }
  EXPECT_EQ(Map::value(Map::zero_code), 0);
  EXPECT_EQ(Map::code(std::numeric_limits<float>::quiet_NaN()), Map::zero_code);
  EXPECT_EQ(Map::code(2), 255);
}

TEST(DynamicMap, HasTheNumbersOfTheTree) {
  compare_map<true>();
  compare_map<false>();
  EXPECT_EQ(kernel::DynamicMap<true>::code(-2), 0);  // has no -1
  EXPECT_FLOAT_EQ(kernel::DynamicMap<true>::value(0), -0.99296875f);
  EXPECT_FLOAT_EQ(kernel::DynamicMap<false>::value(1), 3.25e-7f);
}

// Middles and their neighbours, which have another code, and values that no block can hold.
template <bool is_signed>
void compare_tables() {
  using Map = kernel::DynamicMap<is_signed>;
  using Tables = kernel::DynamicTables<is_signed>;
  constexpr float infinite = std::numeric_limits<float>::infinity();
  std::vector<float> all{0, -0.0f, 2, -2, infinite, -infinite, std::nanf(""), 1e-30f, -1e-30f};
  for (int code = 0; code < 256; ++code) {
    const float value = Map::value(static_cast<std::uint8_t>(code));
    EXPECT_EQ(Tables::value(code), value);
    if (code == 255) continue;
    const float middle = 0.5f * (value + Map::value(static_cast<std::uint8_t>(code + 1)));
    for (const float x :
         {value, middle, std::nextafter(middle, infinite), std::nextafter(middle, -infinite)})
      all.push_back(x);
  }
  for (const float value : all) {
    const float x[3] = {0.5f, value, 1};
    std::uint8_t codes[3];
    Tables::encode(x, 2, codes);
    EXPECT_EQ(codes[0], Map::code(0.5f));
    EXPECT_EQ(codes[1], Map::code(value)) << value;
  }
}

TEST(DynamicMap, TablesHaveItsCodesAndNumbers) {
  compare_tables<true>();
  compare_tables<false>();
}

class AdamW8BitKernel : public OnDevice {
 protected:
  Moments8Bit moments(std::int64_t elements) {
    return zero_moments(*device_, elements, Category::buffers);
  }
};

int nearest(const Values& numbers, double x) {
  int best = 0;
  for (int code = 1; code < 256; ++code)
    if (std::abs(numbers[static_cast<std::size_t>(code)] - x) <
        std::abs(numbers[static_cast<std::size_t>(best)] - x))
      best = code;
  return best;
}

// Steps of a long range with a short last block: moments of both signs, of very different sizes,
// and elements whose gradients are always zero.
TEST_P(AdamW8BitKernel, MatchesPlainLoopsOfEveryStep) {
  constexpr std::size_t block = 256;
  constexpr std::int64_t elements = 5 * 256 + 77;
  const Values with_sign = numbers_of(true), without = numbers_of(false);
  const AdamW adamw{.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1};
  std::vector<std::uint8_t> mask(elements);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  const Memory decays = upload(mask);
  for (const bool masked : {true, false})
    for (const Dtype gradients : sums()) {
      const Tensor weight = random({elements}, dtype(), -1, 1);
      const Tensor master = is_narrow() ? empty({elements}, Dtype::float32) : weight;
      if (is_narrow()) kernels().cast(weight, master);
      const Moments8Bit kept = moments(elements);
      for (int step = 1; step <= 3; ++step) {
        const Tensor gradient = random({elements}, gradients, -1, 1);
        Values g = to_doubles(gradient);
        for (std::size_t i = 0; i < g.size(); ++i)
          g[i] = i % 7 == 3 ? 0 : g[i] * std::pow(10, -static_cast<double>(i % 5));
        from_doubles(gradient, g);
        g = to_doubles(gradient);
        const Values before = to_doubles(master), first_codes = to_doubles(kept.first),
                     second_codes = to_doubles(kept.second), old = to_doubles(kept.scales);
        adamw_8bit(stream(), gradient, 0.5, adamw, step,
                   masked ? static_cast<const std::uint8_t*>(decays.data()) : nullptr, master, kept,
                   weight);
        const Values after = to_doubles(master), weights = to_doubles(weight),
                     firsts = to_doubles(kept.first), seconds = to_doubles(kept.second),
                     scales = to_doubles(kept.scales);
        const std::size_t blocks = scales.size() / 2;
        ASSERT_EQ(blocks, 6u);
        std::vector<Real> wanted, errors;
        Values m, v, largest(2 * blocks);
        for (std::size_t i = 0; i < g.size(); ++i) {
          const auto q = [&](const Values& numbers, const Values& codes) {
            return numbers[static_cast<std::size_t>(codes[i])];
          };
          m.push_back(0.8 * old[i / block] * q(with_sign, first_codes) + 0.2 * 0.5 * g[i]);
          v.push_back(0.9 * old[blocks + i / block] * q(without, second_codes) +
                      0.1 * 0.25 * g[i] * g[i]);
          largest[i / block] = std::max(largest[i / block], std::abs(m[i]));
          largest[blocks + i / block] = std::max(largest[blocks + i / block], v[i]);
          const double direction = m[i] / (1 - std::pow(0.8, step)) /
                                   (std::sqrt(v[i] / (1 - std::pow(0.9, step))) + adamw.epsilon);
          const double decay = !masked || mask[i] != 0 ? 0.1 * before[i] : 0;
          wanted.push_back(before[i] - 0.01 * (direction + decay));
          // m is a sum that may cancel: its error is that of its terms.
          const double terms =
              0.8 * std::abs(old[i / block] * q(with_sign, first_codes)) + 0.1 * std::abs(g[i]);
          errors.push_back(
              0.01 * 24 * u *
              (std::abs(decay) + (m[i] == 0 ? 0 : std::abs(direction) * terms / std::abs(m[i]))));
        }
        expect_within(after, wanted, errors, Dtype::float32);
        for (std::size_t at = 0; at < scales.size(); ++at)
          EXPECT_NEAR(scales[at], largest[at], 12 * u * largest[at]) << at;
        for (std::size_t i = 0; i < g.size(); ++i) {
          const double first = m[i] / scales[i / block], second = v[i] / scales[blocks + i / block],
                       terms = 0.8 * std::abs(old[i / block]) / scales[i / block] + 1;
          for (const auto& [numbers, code, x, off] :
               {std::tuple(&with_sign, firsts[i], first, 16 * u * terms),
                {&without, seconds[i], second, 16 * u * second}}) {
            EXPECT_GE(code, nearest(*numbers, x - off)) << i;
            EXPECT_LE(code, nearest(*numbers, x + off)) << i;
          }
          EXPECT_LE(std::abs(weights[i] - after[i]), is_narrow() ? rounding(dtype(), after[i]) : 0);
        }
      }
    }
}

// A block does not depend on the range that it is part of, and another without moments has scale 0.
TEST_P(AdamW8BitKernel, BlocksAreIndependent) {
  constexpr std::int64_t elements = 4 * moment_block;
  const Tensor gradient = random({elements}, Dtype::float32), weight = random({elements}, dtype());
  Values g = to_doubles(gradient);
  std::fill_n(g.begin() + moment_block, moment_block, 0);
  from_doubles(gradient, g);
  const Tensor master = is_narrow() ? empty({elements}, Dtype::float32) : weight;
  if (is_narrow()) kernels().cast(weight, master);
  const Tensor again = empty({elements}),
               masters = is_narrow() ? empty({elements}, Dtype::float32) : again;
  from_doubles(again, to_doubles(weight));
  from_doubles(masters, to_doubles(master));
  const Moments8Bit whole = moments(elements), part = moments(2 * moment_block);
  for (int step = 1; step < 4; ++step) {
    adamw_8bit(stream(), gradient, 1, {}, step, nullptr, master, whole, weight);
    const auto second_half = [&](const Tensor& tensor) {
      return tensor.slice(2 * moment_block, {2 * moment_block});
    };
    adamw_8bit(stream(), second_half(gradient), 1, {}, step, nullptr, second_half(masters), part,
               second_half(again));
    EXPECT_EQ(hash(second_half(again)), hash(second_half(weight)));
    EXPECT_EQ(hash(part.first), hash(second_half(whole.first)));
    EXPECT_EQ(hash(part.second), hash(second_half(whole.second)));
    const Values scales = to_doubles(whole.scales), of_part = to_doubles(part.scales);
    EXPECT_EQ(of_part, (Values{scales[2], scales[3], scales[6], scales[7]}));
    EXPECT_EQ(scales[1], 0);
    EXPECT_EQ(scales[5], 0);
    const Values firsts = to_doubles(whole.first), seconds = to_doubles(whole.second);
    for (std::size_t i = moment_block; i < 2 * moment_block; ++i) {
      ASSERT_EQ(firsts[i], 127);
      ASSERT_EQ(seconds[i], 0);
    }
  }
}

// The loops of the host and the body of a GPU, which runs here on the host.
TEST_P(AdamW8BitKernel, TheHostHasTheBitsOfAGpu) {
  if (device_->kind() != Device::Kind::host) GTEST_SKIP() << "both run on the host";
  constexpr std::int64_t elements = 3 * moment_block + 50;
  std::vector<std::uint8_t> mask(elements);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  const AdamW adamw{.learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1};
  const auto copy_of = [&](const Tensor& tensor) {
    const Tensor copy = empty({tensor.size()}, tensor.dtype());
    stream().copy(copy.data(), tensor.data(), tensor.bytes());
    return copy;
  };
  const Tensor weight = random({elements}, dtype()), weights = copy_of(weight);
  const Tensor master = is_narrow() ? empty({elements}, Dtype::float32) : weight;
  if (is_narrow()) kernels().cast(weight, master);
  const Tensor masters = is_narrow() ? copy_of(master) : weights;
  const Moments8Bit by_loops = moments(elements), by_body = moments(elements);
  for (int step = 1; step < 5; ++step) {
    const std::uint8_t* const decays = step % 2 == 0 ? mask.data() : nullptr;
    const Tensor gradient = random({elements}, Dtype::float32);
    Values g = to_doubles(gradient);
    std::fill_n(g.begin() + moment_block, moment_block, 0);
    from_doubles(gradient, g);
    adamw_8bit(stream(), gradient, 0.5, adamw, step, decays, master, by_loops, weight);
    kernel::run_adamw_8bit<kernel::AdamwOfBlock>(HostLaunch(*device_), gradient,
                                                 kernel::AdamwStep<float>(adamw, 0.5, step), decays,
                                                 masters, by_body, weights);
    EXPECT_EQ(hash(weight), hash(weights)) << step;
    EXPECT_EQ(hash(master), hash(masters)) << step;
    EXPECT_EQ(hash(by_loops.first), hash(by_body.first)) << step;
    EXPECT_EQ(hash(by_loops.second), hash(by_body.second)) << step;
    EXPECT_EQ(hash(by_loops.scales), hash(by_body.scales)) << step;
  }
}

TEST_P(AdamW8BitKernel, RejectsOtherShapesAndDtypes) {
  const Tensor weight = random({300}),
               master = is_narrow() ? random({300}, Dtype::float32) : weight,
               gradient = random({300}, Dtype::float32);
  const Moments8Bit right = moments(300), wrong = moments(600);
  adamw_8bit(stream(), gradient, 1, {}, 1, nullptr, master, right, weight);
  EXPECT_THROW(adamw_8bit(stream(), gradient, 1, {}, 1, nullptr, master, wrong, weight),
               std::logic_error);
  const Tensor in_double = random({300}, Dtype::float64);
  EXPECT_THROW(adamw_8bit(stream(), in_double, 1, {}, 1, nullptr, master, right, weight),
               std::logic_error);
  EXPECT_THROW(adamw_8bit(stream(), gradient, 1, {}, 1, nullptr, in_double, right, in_double),
               std::logic_error);
}

constexpr Dtype weights_of_codes[] = {Dtype::float32, Dtype::bfloat16, Dtype::float16};
SHARDMARK_ON_EVERY_DEVICE_IN(AdamW8BitKernel, weights_of_codes);

}  // namespace
}  // namespace machine
