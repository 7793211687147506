// The update of plain::Training: the optimizers.

#include <algorithm>
#include <cmath>

#include "suite/reference/plain/training.h"

namespace suite::plain {

// The means of averaged squares are the averages of their means, so averages of all squares stay
// here.
void Training::adafactor_step(double factor, double learning_rate,
                              const std::vector<double>& gradient, Parameter& parameter) const {
  const bool vector = parameter.columns == 0;
  const std::size_t columns = vector ? 1 : static_cast<std::size_t>(parameter.columns),
                    rows = gradient.size() / columns;
  const double kept = 1 - std::pow(static_cast<double>(updates_), -rule_.decay_rate);
  std::vector<double> of_rows(rows), of_columns(columns), update(gradient.size());
  double all = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = factor * gradient[i];
    double& average = parameter.second_moment[i];
    average = kept * average + (1 - kept) * g * g;
    of_rows[i / columns] += average / static_cast<double>(columns);
    of_columns[i % columns] += average / static_cast<double>(rows);
    all += average / static_cast<double>(gradient.size());
  }
  double squares = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double second = vector    ? parameter.second_moment[i]
                          : all > 0 ? of_rows[i / columns] * of_columns[i % columns] / all
                                    : 0;
    update[i] = factor * gradient[i] / (std::sqrt(second) + 1e-15);
    squares += update[i] * update[i];
  }
  const double root = std::sqrt(squares / static_cast<double>(gradient.size()));
  const double rate = learning_rate / std::max(1.0, root / rule_.largest_update);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& value = parameter.value[i];
    value -= rate * update[i] + (parameter.decays ? learning_rate * rule_.decay * value : 0);
  }
}

// Adam without correction of the bias. An element that had no gradient before its variance is
// constant only decays.
void Training::one_bit_step(double factor, double learning_rate,
                            const std::vector<double>& gradient, const std::vector<double>* sum,
                            Parameter& parameter) const {
  const bool constant = updates_ > rule_.freeze_step;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double g = factor * gradient[i];
    double &first = parameter.first_moment[i], &second = parameter.second_moment[i];
    double& value = parameter.value[i];
    first = constant && sum ? (*sum)[i] : rule_.beta1 * first + (1 - rule_.beta1) * g;
    if (!constant) second = rule_.beta2 * second + (1 - rule_.beta2) * g * g;
    double change = parameter.decays ? rule_.decay * value : 0;
    if (!constant || second > 0) change += first / (std::sqrt(second) + rule_.epsilon);
    value -= learning_rate * change;
  }
}

// LAMB without correction of the bias. Then its ratios' mean replaces them, times a factor that
// compares the constant variance with one that follows the gradients.
void Training::one_bit_lamb_step(double factor, double learning_rate,
                                 const std::vector<double>& gradient,
                                 const std::vector<double>* sum, Parameter& parameter) const {
  const bool constant = updates_ > rule_.freeze_step;
  const double decay = parameter.decays ? rule_.decay : 0;
  std::vector<double> update(gradient.size());
  parameter.fresh_variance.resize(gradient.size());
  double weights = 0, updates = 0, moves = 0, quotient = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double &first = parameter.first_moment[i], &second = parameter.second_moment[i],
           &fresh = parameter.fresh_variance[i];
    double g = factor * gradient[i];
    const double last = first;
    first = constant && sum ? (*sum)[i] : rule_.beta1 * last + (1 - rule_.beta1) * g;
    if (constant) {
      g = (first - rule_.beta1 * last) / (1 - rule_.beta1);
      fresh = rule_.beta2 * fresh + (1 - rule_.beta2) * g * g;
      if (second > 0)
        quotient = std::max(
            quotient, (std::sqrt(second) + rule_.epsilon) / (std::sqrt(fresh) + rule_.epsilon));
    } else {
      fresh = second = rule_.beta2 * second + (1 - rule_.beta2) * g * g;
    }
    const double move = constant && second == 0 ? 0 : first / (std::sqrt(second) + rule_.epsilon);
    update[i] = move + decay * parameter.value[i];
    weights += parameter.value[i] * parameter.value[i];
    updates += update[i] * update[i];
    moves += move * move;
  }
  double ratio = 1;
  if (constant) {
    const double part = updates > 0 ? std::min(1.0, std::sqrt(moves / updates)) : 1;
    const double wanted =
        std::min(rule_.largest_factor, std::max(rule_.least_factor, quotient * part + 1 - part));
    parameter.factor = std::min(parameter.factor * (1 + rule_.largest_change),
                                std::max(parameter.factor * (1 - rule_.largest_change), wanted));
    ratio = parameter.ratio * parameter.factor;
  } else {
    if (weights > 0 && updates > 0)
      ratio =
          std::min(rule_.largest_ratio, std::max(rule_.least_ratio, std::sqrt(weights / updates)));
    if (ratio != 1)
      parameter.ratio = rule_.ratio_beta * parameter.ratio + (1 - rule_.ratio_beta) * ratio;
  }
  for (std::size_t i = 0; i < update.size(); ++i)
    parameter.value[i] -= learning_rate * ratio * update[i];
}

void Training::update(double factor, double learning_rate, const Sums* sums) {
  ++updates_;
  const auto step = static_cast<double>(updates_);
  using enum Rule::Kind;
  const Rule::Kind kind = rule_.kind == muon ? adamw : rule_.kind;
  for (auto& [name, parameter] : parameters_) {
    if (parameter.frozen) continue;
    const double decay = parameter.decays ? rule_.decay : 0;
    const std::vector<double>& gradient = used(name, parameter, sums);
    if (sums) {
      const auto first = sums->find(name + first_moment), second = sums->find(name + second_moment);
      if (first != sums->end()) parameter.first_moment = first->second;
      if (second != sums->end()) parameter.second_moment = second->second;
    }
    if (rule_.kind == adafactor) {
      adafactor_step(factor, learning_rate, gradient, parameter);
      continue;
    }
    if (rule_.kind == one_bit_adam) {
      one_bit_step(factor, learning_rate, gradient, sums ? &gradient : nullptr, parameter);
      continue;
    }
    if (rule_.kind == one_bit_lamb) {
      one_bit_lamb_step(factor, learning_rate, gradient, sums ? &gradient : nullptr, parameter);
      continue;
    }
    if (rule_.kind == muon && parameter.hidden) {
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
