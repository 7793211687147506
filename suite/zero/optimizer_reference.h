#pragma once
// Steps of an optimizer in double, element by element. Each number has a bound on its distance from
// the same arithmetic in a narrower dtype: running error analysis (Higham 2002, "Accuracy and
// Stability of Numerical Algorithms", section 3.3). Every operation adds its inputs' errors and its
// own rounding. The formulas are the papers' (machine/device/kernels.h). Shares no code with zero/
// or the kernels.

#include <cmath>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "suite/reference/bounded.h"
#include "zero/optimizers/optimizer.h"

namespace suite {

class OptimizerReference {
 public:
  struct Element {
    Bounded master, first, second;
    bool decays = true;
  };

  // initial: exact. roundoff: unit roundoff of the dtype that the judged side computes in.
  OptimizerReference(const zero::Rule& rule, const std::vector<double>& initial,
                     const std::vector<std::uint8_t>& decays, double roundoff)
      : rule_(rule), roundoff_(roundoff) {
    for (std::size_t i = 0; i < initial.size(); ++i)
      elements_.push_back({{initial[i], 0}, {}, {}, decays[i] != 0});
  }

  // Begins after `steps` steps.
  OptimizerReference(const zero::Rule& rule, std::vector<Element> elements, int steps,
                     double roundoff)
      : rule_(rule), roundoff_(roundoff), elements_(std::move(elements)), steps_(steps) {}

  // gradients: exact in that dtype.
  void step(const std::vector<double>& gradients, double gradient_scale) {
    ++steps_;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      Element& e = elements_[i];
      const Bounded scaled = multiply({gradients[i], 0}, constant(gradient_scale));
      e.master = std::visit(
          [&](const auto& options) {
            const Bounded step =
                multiply(constant(options.learning_rate), direction(options, scaled, e));
            return add(e.master, {-step.value, step.error});
          },
          rule_);
    }
  }

  const std::vector<Element>& elements() const { return elements_; }

 private:
  // Adds the rounding of the judged side and that of the reference, which rounds in double.
  Bounded rounded(double value, double error) const {
    return {value, error + (std::abs(value) + error) * (roundoff_ + 0x1p-52)};
  }
  Bounded constant(double value) const { return rounded(value, 0); }
  Bounded add(Bounded a, Bounded b) const { return rounded(a.value + b.value, a.error + b.error); }
  Bounded multiply(Bounded a, Bounded b) const {
    return rounded(a.value * b.value,
                   std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
  }
  Bounded divide(Bounded a, Bounded b) const {
    const double quotient = a.value / b.value;
    return rounded(quotient,
                   (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error));
  }
  // |sqrt(x) - sqrt(y)| = |x - y| / (sqrt(x) + sqrt(y)) is at most sqrt(|x - y|).
  Bounded root(Bounded a) const {
    const double value = std::sqrt(a.value);
    return rounded(value, value > 0 ? a.error / value : std::sqrt(a.error));
  }

  // Returns smoothing old + (1 - smoothing) x.
  Bounded smoothed(double smoothing, Bounded old, Bounded x) const {
    return add(multiply(constant(smoothing), old), multiply(constant(1 - smoothing), x));
  }
  // Returns x / (1 - beta^steps). The error of the power is a rounding of double per factor. The
  // difference from 1 does not reduce this error.
  Bounded corrected(Bounded x, double beta) const {
    double power = 1;
    for (int i = 0; i < steps_; ++i) power *= beta;
    return divide(x, rounded(1 - power, (steps_ + 2) * 0x1p-52 * power));
  }

  Bounded decay(double weight_decay, const Element& e) const {
    return e.decays ? multiply(constant(weight_decay), e.master) : Bounded{};
  }
  template <class Options>
  Bounded adam(const Options& options, Bounded g, Element& e) const {
    e.first = smoothed(options.beta1, e.first, g);
    e.second = smoothed(options.beta2, e.second, multiply(g, g));
    return divide(corrected(e.first, options.beta1),
                  add(root(corrected(e.second, options.beta2)), constant(options.epsilon)));
  }

  Bounded direction(const zero::Sgd&, Bounded gradient, Element&) const { return gradient; }
  Bounded direction(const zero::Momentum& options, Bounded gradient, Element& e) const {
    const Bounded g = add(gradient, decay(options.weight_decay, e));
    return e.first = add(multiply(constant(options.momentum), e.first), g);
  }
  Bounded direction(const zero::RmsProp& options, Bounded gradient, Element& e) const {
    const Bounded g = add(gradient, decay(options.weight_decay, e));
    e.second = smoothed(options.smoothing, e.second, multiply(g, g));
    return divide(g, add(root(e.second), constant(options.epsilon)));
  }
  Bounded direction(const zero::Adam& options, Bounded gradient, Element& e) const {
    return adam(options, add(gradient, decay(options.weight_decay, e)), e);
  }
  Bounded direction(const zero::AdamW& options, Bounded gradient, Element& e) const {
    return add(adam(options, gradient, e), decay(options.weight_decay, e));
  }
  Bounded direction(const zero::AdamW8Bit& options, Bounded gradient, Element& e) const {
    return direction(options.adamw(), gradient, e);
  }
  Bounded direction(const zero::Lamb&, Bounded, Element&) const {
    throw std::logic_error("LAMB updates whole parameters");
  }
  Bounded direction(const zero::Muon&, Bounded, Element&) const {
    throw std::logic_error("Muon updates whole matrices");
  }
  Bounded direction(const zero::Adafactor&, Bounded, Element&) const {
    throw std::logic_error("Adafactor updates whole parameters");
  }
  Bounded direction(const zero::OneBitAdam&, Bounded, Element&) const {
    throw std::logic_error("1-bit Adam sums momenta");
  }
  Bounded direction(const zero::OneBitLamb&, Bounded, Element&) const {
    throw std::logic_error("1-bit LAMB sums momenta");
  }
  // The sign of a number that is smaller than its error is not known.
  Bounded direction(const zero::Lion& options, Bounded gradient, Element& e) const {
    const Bounded moved = smoothed(options.beta1, e.first, gradient);
    e.first = smoothed(options.beta2, e.first, gradient);
    const double sign = moved.value > 0 ? 1 : moved.value < 0 ? -1 : 0;
    const bool known = moved.error == 0 || std::abs(moved.value) > moved.error;
    return add({sign, known ? 0.0 : 1 + std::abs(sign)}, decay(options.weight_decay, e));
  }

  zero::Rule rule_;
  double roundoff_;
  std::vector<Element> elements_;
  int steps_ = 0;
};

}  // namespace suite
