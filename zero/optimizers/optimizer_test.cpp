#include "zero/optimizers/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace zero {
namespace {

using machine::Category;
using machine::Dtype;
using machine::Tensor;

Tensor tensor(machine::Device& device, Dtype dtype, const std::vector<double>& values) {
  const Tensor made(device, dtype, {static_cast<std::int64_t>(values.size())},
                    Category::parameters);
  from_doubles(made, values);
  return made;
}

// Units are 32-bit weights, and the weights are included.
TEST(Optimizer, KeepsTheStatesOfItsTable) {
  const auto device = machine::make_host_device();
  for (const auto& [rule, units] : std::vector<std::pair<Rule, std::size_t>>{
           {Sgd{}, 1}, {Momentum{}, 2}, {RmsProp{}, 2}, {Lion{}, 2}, {Adam{}, 3}, {AdamW{}, 3}}) {
    for (const auto& [dtype, weight, own] : {std::tuple{Dtype::float32, 4, 4},
                                             {Dtype::bfloat16, 4, 0},
                                             {Dtype::float16, 4, 0},
                                             {Dtype::float64, 8, 8}}) {
      const Tensor values = tensor(*device, dtype, std::vector<double>(100, 1));
      const Optimizer optimizer(rule, values, std::vector<std::uint8_t>(100, 1));
      const std::size_t bytes =
          units * static_cast<std::size_t>(weight) - static_cast<std::size_t>(own);
      EXPECT_EQ(device->ledger().current(Category::optimizer), 100 * bytes) << name(rule);
      EXPECT_EQ(optimizer_bytes_per_element(rule, dtype), bytes) << name(rule);
      EXPECT_EQ(device->ledger().current(Category::buffers), 100 * mask_bytes_per_element(rule));
    }
  }
  EXPECT_EQ(mask_bytes_per_element(Sgd{}), 0u);
}

// Computed by hand: two elements of value 4, of which only the first decays, and gradients that are
// halved. Every number is exact in half.
TEST(Optimizer, StepsByHand) {
  using Two = std::vector<double>;
  const auto device = machine::make_host_device();
  for (const Dtype dtype : machine::floating_dtypes) {
    const Dtype wide = dtype == Dtype::float64 ? dtype : Dtype::float32;
    const auto after = [&](const Rule& rule, const std::vector<double>& gradients) {
      const Tensor values = tensor(*device, dtype, {4, 4});
      Optimizer optimizer(rule, values, {1, 0});
      for (const double gradient : gradients)
        optimizer.update(tensor(*device, wide, {gradient, gradient}), 0.5);
      EXPECT_EQ(to_doubles(values), to_doubles(optimizer.master()));
      return to_doubles(values);
    };
    EXPECT_EQ(after(Sgd{.learning_rate = 0.5}, {2, 4}), (Two{2.5, 2.5}));
    // Velocities 1, then 1/2 + 2; with a decay of 1/4 of the weight: 1 + 1, then 1 + 2 + 3/4.
    EXPECT_EQ(after(Momentum{0.5, 0.5, 0}, {2, 4}), (Two{2.25, 2.25}));
    EXPECT_EQ(after(Momentum{0.5, 0.5, 0.25}, {2, 4}), (Two{1.125, 2.25}));
    // Signs of 1/2, 1/8 - 3/2 and -9/32 + 1/2, with the moments 1/4 and -9/16 before the last two.
    EXPECT_EQ(after(Lion{0.5, 0.5, 0.75, 0.25}, {2, -6, 2}), (Two{2.234375, 3.5}));
    // Squares 1/4 of 16, then 3/4 of 4 and 1/4 of 4: both have the root 2.
    EXPECT_EQ(after(RmsProp{0.5, 0.75, 0, 0}, {8, 4}), (Two{2.5, 2.5}));
    // Gradients 2 + 4 and 2, roots 3 and 1, and an epsilon of 1.
    EXPECT_EQ(after(RmsProp{0.5, 0.75, 1, 1}, {4}), (Two{3.25, 3.5}));
    // Corrected, the first moments are the gradient and its square: 12 / (12 + 4) and 4 / (4 + 4).
    EXPECT_EQ(after(Adam{0.5, 0.5, 0.75, 4, 2}, {8}), (Two{3.625, 3.75}));
    // The decay is added to the direction, 1/2 + 4/4.
    EXPECT_EQ(after(AdamW{0.5, 0.5, 0.75, 4, 0.25}, {8}), (Two{3.25, 3.75}));
  }
}

// With a constant gradient, the corrected moments are constant, so every step equals the first.
TEST(Optimizer, CorrectsTheBiasOfEveryStep) {
  const auto device = machine::make_host_device();
  const Tensor gradient = tensor(*device, Dtype::float64, {3, -0.01});
  for (const Rule& rule :
       {Rule(Adam{0.125, 0.9, 0.999, 0, 0}), Rule(AdamW{0.125, 0.9, 0.999, 0, 0})}) {
    const Tensor values = tensor(*device, Dtype::float64, {4, 4});
    Optimizer optimizer(rule, values, {1, 1});
    for (int step = 1; step <= 5; ++step) {
      optimizer.update(gradient, 1);
      EXPECT_EQ(optimizer.steps(), step);
      EXPECT_NEAR(to_doubles(values)[0], 4 - 0.125 * step, 1e-12);
      EXPECT_NEAR(to_doubles(values)[1], 4 + 0.125 * step, 1e-12);
    }
  }
}

// A uniform mask is not read. The bits are the same as with a mask that is read.
TEST(Optimizer, UniformMasksChangeNoBit) {
  const auto device = machine::make_host_device();
  std::vector<double> start, slopes;
  for (int i = 0; i < 301; ++i) {
    start.push_back(std::sin(i));
    slopes.push_back(std::cos(3 * i));
  }
  for (const Rule& rule : {Rule(Momentum{0.1, 0.9, 0.1}), Rule(RmsProp{0.1, 0.99, 1e-8, 0.1}),
                           Rule(Adam{0.1, 0.9, 0.999, 1e-8, 0.1}), Rule(AdamW{})}) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      const Tensor gradient = tensor(*device, Dtype::float32, slopes);
      const auto hash_after = [&](std::uint8_t most, std::uint8_t last) {
        const Tensor values = tensor(*device, dtype, start);
        std::vector<std::uint8_t> mask(301, most);
        mask.back() = last;
        Optimizer optimizer(rule, values, mask);
        for (int step = 0; step < 3; ++step) optimizer.update(gradient, 0.3);
        return hash(optimizer.master().slice(0, {300}));
      };
      EXPECT_EQ(hash_after(1, 1), hash_after(1, 0)) << name(rule);
      EXPECT_EQ(hash_after(0, 0), hash_after(0, 1)) << name(rule);
      EXPECT_NE(hash_after(0, 0), hash_after(1, 1)) << name(rule);
    }
  }
}

TEST(Optimizer, NamesAreFound) {
  for (const std::string& rule : rule_names()) EXPECT_EQ(name(find_rule(rule)), rule);
  try {
    find_rule("adamm");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown optimizer 'adamm'; did you mean 'adam'?");
  }
}

}  // namespace
}  // namespace zero
