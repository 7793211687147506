#include "suite/zero/optimizer_reference.h"

#include <cmath>

namespace suite {
namespace {

// Arithmetic on Bounded. The reference rounds too, in double.
struct Arithmetic {
  double roundoff;

  Bounded rounded(double value, double error) const {
    return {value, error + (std::abs(value) + error) * (roundoff + 0x1p-52)};
  }
  Bounded constant(double value) const { return rounded(value, 0); }
  Bounded add(Bounded a, Bounded b) const { return rounded(a.value + b.value, a.error + b.error); }
  Bounded subtract(Bounded a, Bounded b) const {
    return rounded(a.value - b.value, a.error + b.error);
  }
  Bounded multiply(Bounded a, Bounded b) const {
    return rounded(a.value * b.value,
                   std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
  }
  Bounded divide(Bounded a, Bounded b) const {
    const double quotient = a.value / b.value;
    return rounded(quotient,
                   (a.error + std::abs(quotient) * b.error) / (std::abs(b.value) - b.error));
  }
  // |sqrt(x) - sqrt(y)| = |x - y| / (sqrt(x) + sqrt(y)), and at most sqrt(|x - y|).
  Bounded root(Bounded a) const {
    const double value = std::sqrt(a.value);
    return rounded(value, value > 0 ? a.error / value : std::sqrt(a.error));
  }
};

// smoothing old + (1 - smoothing) x.
Bounded smoothed(const Arithmetic& in, double smoothing, Bounded old, Bounded x) {
  return in.add(in.multiply(in.constant(smoothing), old),
                in.multiply(in.constant(1 - smoothing), x));
}

// x / (1 - beta^steps). The power is off by as many roundings of double as it has factors, which
// the difference from 1 does not make smaller.
Bounded corrected(const Arithmetic& in, Bounded x, double beta, int steps) {
  double power = 1;
  for (int i = 0; i < steps; ++i) power *= beta;
  return in.divide(x, in.rounded(1 - power, (steps + 2) * 0x1p-52 * power));
}

struct Element {
  const Arithmetic& in;
  Bounded gradient;
  bool decays;
  int steps;
  Bounded &master, &first, &second;

  void descend(double learning_rate, Bounded direction) {
    master = in.subtract(master, in.multiply(in.constant(learning_rate), direction));
  }
  Bounded shrink(double weight_decay) const {
    return decays ? in.multiply(in.constant(weight_decay), master) : Bounded{};
  }
  template <class Options>
  Bounded adam(const Options& options, Bounded g) {
    first = smoothed(in, options.beta1, first, g);
    second = smoothed(in, options.beta2, second, in.multiply(g, g));
    const Bounded root = in.root(corrected(in, second, options.beta2, steps));
    return in.divide(corrected(in, first, options.beta1, steps),
                     in.add(root, in.constant(options.epsilon)));
  }

  void operator()(const zero::Sgd& options) { descend(options.learning_rate, gradient); }
  void operator()(const zero::Momentum& options) {
    const Bounded g = in.add(gradient, shrink(options.weight_decay));
    first = in.add(in.multiply(in.constant(options.momentum), first), g);
    descend(options.learning_rate, first);
  }
  void operator()(const zero::RmsProp& options) {
    const Bounded g = in.add(gradient, shrink(options.weight_decay));
    second = smoothed(in, options.smoothing, second, in.multiply(g, g));
    descend(options.learning_rate,
            in.divide(g, in.add(in.root(second), in.constant(options.epsilon))));
  }
  void operator()(const zero::Adam& options) {
    descend(options.learning_rate, adam(options, in.add(gradient, shrink(options.weight_decay))));
  }
  void operator()(const zero::AdamW& options) {
    const Bounded decay = shrink(options.weight_decay);  // of the weight before the step
    descend(options.learning_rate, in.add(adam(options, gradient), decay));
  }
};

}  // namespace

OptimizerReference::OptimizerReference(const zero::Rule& rule, const std::vector<double>& initial,
                                       const std::vector<std::uint8_t>& decays, double roundoff)
    : rule_(rule),
      first_(initial.size()),
      second_(initial.size()),
      decays_(decays),
      roundoff_(roundoff) {
  for (const double value : initial) masters_.push_back({value, 0});
}

void OptimizerReference::step(const std::vector<double>& gradients, double gradient_scale) {
  const Arithmetic in{roundoff_};
  ++steps_;
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const Bounded scaled = in.multiply({gradients[i], 0}, in.constant(gradient_scale));
    std::visit(Element{in, scaled, decays_[i] != 0, steps_, masters_[i], first_[i], second_[i]},
               rule_);
  }
}

}  // namespace suite
