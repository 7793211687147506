// The update of plain::Training: the optimizers.

#include <algorithm>
#include <cmath>

#include "suite/reference/plain/training.h"

namespace suite::plain {

void Training::update(double factor, double learning_rate, const Sums* sums) {
  ++updates_;
  const auto step = static_cast<double>(updates_);
  using enum Rule::Kind;
  const Rule::Kind kind = rule_.kind == muon ? adamw : rule_.kind;
  for (auto& [name, parameter] : parameters_) {
    if (parameter.frozen) continue;
    const double decay = parameter.decays ? rule_.decay : 0;
    const std::vector<double>& gradient = used(name, parameter, sums);
    if (rule_.kind == muon && parameter.columns > 0) {
      std::vector<double> scaled = gradient;
      for (double& value : scaled) value *= factor;
      muon_step(rule_.muon, rule_.momentum, learning_rate, decay,
                {parameter.columns, parameter.parts}, scaled, parameter.first_moment,
                parameter.value);
      continue;
    }
    std::vector<double> changes;  // of LAMB, which first needs their norm
    double squares = 0, squares_of_changes = 0;
    for (std::size_t i = 0; i < parameter.value.size(); ++i) {
      double& value = parameter.value[i];
      double& first = parameter.first_moment[i];
      double& second = parameter.second_moment[i];
      double g = factor * gradient[i];
      if (kind != adamw && kind != lion && kind != lamb) g += decay * value;
      double change = g;
      if (kind == sgd) {
        change = first = rule_.momentum * first + g;
      } else if (kind == rmsprop) {
        second = rule_.smoothing * second + (1 - rule_.smoothing) * g * g;
        change = g / (std::sqrt(second) + rule_.epsilon);
      } else if (kind == lion) {
        const double moved = rule_.beta1 * first + (1 - rule_.beta1) * g;
        change = (moved == 0 ? 0 : std::copysign(1.0, moved)) + decay * value;
        first = rule_.beta2 * first + (1 - rule_.beta2) * g;
      } else {
        first = rule_.beta1 * first + (1 - rule_.beta1) * g;
        second = rule_.beta2 * second + (1 - rule_.beta2) * g * g;
        change = first / (1 - std::pow(rule_.beta1, step)) /
                 (std::sqrt(second / (1 - std::pow(rule_.beta2, step))) + rule_.epsilon);
        if (kind == adamw || kind == lamb) change += decay * value;
      }
      if (kind == lamb) {
        squares += value * value;
        squares_of_changes += change * change;
        changes.push_back(change);
        continue;
      }
      value -= learning_rate * change;
    }
    double ratio = 1;
    if (squares > 0 && squares_of_changes > 0)
      ratio = std::min(rule_.largest_ratio,
                       std::max(rule_.least_ratio, std::sqrt(squares / squares_of_changes)));
    for (std::size_t i = 0; i < changes.size(); ++i)
      parameter.value[i] -= learning_rate * ratio * changes[i];
  }
}

}  // namespace suite::plain
