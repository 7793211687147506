#include "suite/reference/first_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "layers/models/gpt_cost.h"
#include "machine/device/kernels.h"
#include "suite/reference/plain/muon.h"
#include "suite/trainer/trainer.h"

namespace suite {
namespace {

constexpr zero::AdamW adamw;

double step(double g) { return adamw.learning_rate * g / (std::abs(g) + adamw.epsilon); }

double norm(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

double moved(const std::vector<double>& gradient, const std::vector<double>& error) {
  double squares = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i)
    squares += std::pow(step(gradient[i] + error[i]) - step(gradient[i]), 2);
  return std::sqrt(squares);
}

// The gradients' elements range from far below to far above Adam's epsilon. The errors push the k
// smallest elements toward zero or past it, because errors of small elements have the most effect.
TEST(FirstStep, BoundHoldsForGradientErrors) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  double nearest = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const double middle = std::pow(10.0, -9.0 + trial % 7);
    std::vector<double> gradient;
    for (int i = 0; i < 12; ++i)
      gradient.push_back(middle * std::exp(2 * normal(random)) * (trial % 2 == 0 ? 1 : -1));
    std::sort(gradient.begin(), gradient.end(),
              [](double a, double b) { return std::abs(a) < std::abs(b); });
    const double relative = std::pow(10.0, -4.0 + trial % 4);
    const double bound = first_step_bound(adamw, gradient, relative, 0);
    const double budget = relative * norm(gradient);
    for (std::size_t many = 1; many <= gradient.size(); ++many)
      for (const double part : {0.1, 0.5, 0.999, 1.001, 2.0}) {
        std::vector<double> error(gradient.size(), 0.0);
        for (std::size_t i = 0; i < many; ++i) error[i] = -part * gradient[i];
        const double size = norm(error);
        if (size > budget)
          for (double& one : error) one *= budget / size;
        const double distance = moved(gradient, error);
        EXPECT_LE(distance, bound * (1 + 1e-12)) << trial << " " << many << " " << part;
        if (bound > 0) nearest = std::max(nearest, distance / bound);
      }
  }
  EXPECT_GT(nearest, 0.9);  // the bound is not far above the largest distance
}

// LAMB's step of a whole parameter, with the limits in effect and without.
TEST(FirstStep, BoundHoldsForLamb) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  double nearest = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const zero::Lamb lamb{.learning_rate = 0.1,
                          .epsilon = 1e-3,
                          .weight_decay = trial % 2 == 0 ? 0.1 : 0,
                          .min_coeff = 0.2,
                          .max_coeff = 2};
    std::vector<double> values, gradient;
    for (int i = 0; i < 6; ++i) {
      values.push_back(std::pow(10.0, trial % 3 - 1) * normal(random));
      gradient.push_back(1e-3 * normal(random));
    }
    const auto step = [&](const std::vector<double>& g) {
      std::vector<double> all;
      for (std::size_t i = 0; i < g.size(); ++i)
        all.push_back(g[i] / (std::abs(g[i]) + lamb.epsilon) + lamb.weight_decay * values[i]);
      const double ratio = std::clamp(norm(values) / norm(all), lamb.min_coeff, lamb.max_coeff);
      for (double& one : all) one *= lamb.learning_rate * ratio;
      return all;
    };
    const double relative = std::pow(10.0, -3.0 + trial % 3);
    const double bound = first_step_bound(lamb, gradient, relative, 0, norm(values));
    std::vector<double> error;
    for (std::size_t i = 0; i < gradient.size(); ++i) error.push_back(normal(random));
    const double size = norm(error);
    std::vector<double> other = gradient;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      other[i] += error[i] * relative * norm(gradient) / size;
    const std::vector<double> a = step(gradient), b = step(other);
    std::vector<double> difference;
    for (std::size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
    EXPECT_LE(norm(difference), bound * (1 + 1e-12)) << trial;
    nearest = std::max(nearest, norm(difference) / bound);
  }
  EXPECT_GT(nearest, 0.5);
}

// Muon's step of a matrix with two parts, whose rows take turns.
TEST(FirstStep, BoundHoldsForMuon) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  double nearest = 0;
  for (int trial = 0; trial < 300; ++trial) {
    zero::Muon muon{.learning_rate = 0.1, .num_ns_steps = 3};
    if (trial % 2 == 0) muon.coefficients = zero::NewtonSchulzType::simple;
    zero::MatrixRow matrix{.columns = 3};
    if (trial % 3 == 0) matrix.parts = {1, 1};
    std::vector<double> gradient, error;
    // A gradient with one large singular value, so an error changes the small values most.
    for (int i = 0; i < 12; ++i) {
      gradient.push_back(1 + std::pow(10.0, -trial % 4) * normal(random));
      error.push_back(normal(random));
    }
    const auto step = [&](const std::vector<double>& g) {
      std::vector<double> average(12), value(12);
      plain::muon_step(
          {.steps = 3, .coefficients = trial % 2 == 0 ? "simple" : "quintic", .scale = "spectral"},
          0, 0.1, 0, {3, matrix.parts}, g, average, value);
      return value;
    };
    const double relative = std::pow(10.0, -4.0 + trial % 3);
    const double size = norm(error);
    std::vector<double> other = gradient;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      other[i] += error[i] * relative * norm(gradient) / size;
    const std::vector<double> a = step(gradient), b = step(other);
    std::vector<double> difference;
    for (std::size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
    const double bound = first_step_bound(muon, gradient, relative, 0, 0, matrix);
    EXPECT_LE(norm(difference), bound) << trial;
    nearest = std::max(nearest, norm(difference) / bound);
  }
  EXPECT_GT(nearest, 0.2);
}

TEST(FirstStep, BoundHoldsForWrongFactors) {
  const std::vector<double> gradient{1e-8, 3e-8, 1e-3};
  for (const double factor : {1e-6, 1e-2}) {
    std::vector<double> error = gradient;
    for (double& one : error) one *= -factor;
    const double distance = moved(gradient, error),
                 bound = first_step_bound(adamw, gradient, 0, factor);
    EXPECT_LE(distance, bound * (1 + 1e-9));
    EXPECT_GT(distance, 0.9 * bound);
  }
}

// RMSProp's first step of one element with an error that changes its sign, and SGD's first step
// with any error.
TEST(FirstStep, OtherOptimizers) {
  const zero::RmsProp rms{.learning_rate = 0.1, .smoothing = 0.9, .epsilon = 1e-8};
  const auto rmsprop = [&](double g) { return 0.1 * g / (std::sqrt(0.1 * g * g) + 1e-8); };
  EXPECT_NEAR(first_step_bound(rms, {1e-3}, 2, 0), rmsprop(1e-3) - rmsprop(-1e-3), 1e-4);
  EXPECT_GE(first_step_bound(rms, {1e-3}, 2, 0), rmsprop(1e-3) - rmsprop(-1e-3));
  EXPECT_DOUBLE_EQ(first_step_bound(zero::Sgd{0.5}, {3, 4}, 0.01, 0.02), 0.5 * 5 * 0.03);
  EXPECT_DOUBLE_EQ(first_step_bound(zero::Momentum{0.5}, {3, 4}, 0.01, 0), 0.5 * 5 * 0.01);
  EXPECT_DOUBLE_EQ(first_step_bound(zero::Adam{.learning_rate = 0.5, .weight_decay = 0.1},
                                    {3, 4, 5, 6}, 1e-9, 0),
                   2);
}

TEST(FirstStep, ZerosHaveBoundZero) { EXPECT_EQ(first_step_bound(adamw, {0, 0}, 0.5, 0.5), 0); }

}  // namespace
}  // namespace suite
