#include "suite/reference/first_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "suite/reference/plain/muon.h"
#include "suite/reference/whole_values.h"

namespace suite {
namespace {

// Sizes in ascending order. Few are asked for, and sorting all of a large model would take longer
// than the rest of its judgement.
class AscendingSizes {
 public:
  explicit AscendingSizes(std::vector<double> sizes) : heap_(std::move(sizes)) {
    std::ranges::make_heap(heap_, std::greater());
  }
  // place: at most one above the highest so far.
  double operator[](std::size_t place) {
    for (; sorted_.size() <= place; heap_.pop_back()) {
      std::ranges::pop_heap(heap_, std::greater());
      sorted_.push_back(heap_.back());
    }
    return sorted_[place];
  }

 private:
  std::vector<double> heap_, sorted_;
};

double adams(double learning_rate, double epsilon, const std::vector<double>& gradient,
             double relative, double factor) {
  std::vector<double> sizes;
  for (const double value : gradient)
    if (value != 0) sizes.push_back(std::abs(value));
  double squares = 0;
  for (const double g : sizes) squares += g * g;
  const double budget = relative * relative * squares;

  // The worst error changes the elements with the largest effect per square. A change of lr costs
  // (g / 2)^2. A change of 2 lr, with four times the square, costs g^2, four times as much. Units:
  // lr^2.
  AscendingSizes ascending(sizes);
  double left = budget, jumps = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double g = ascending[i];
    const double fit = std::min(4.0, std::floor(left / (g * g / 4)));
    jumps += fit;
    left -= fit * g * g / 4;
    if (fit < 4) break;
  }
  // Errors below half of an element change the step in proportion, most if elements are small.
  double moved = 0;
  left = budget;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const double g = ascending[i];
    const double slope = epsilon / ((g + epsilon) * (g / 2 + epsilon));
    const double spent = std::min(left, g * g / 4);
    moved += slope * slope * spent;
    left -= spent;
    if (left <= 0) break;
  }
  // A wrong factor does not change signs.
  double scaled = 0;
  for (const double g : sizes) {
    const double change = factor * epsilon * g / ((g + epsilon) * (g * (1 - factor) + epsilon));
    scaled += change * change;
  }
  return learning_rate * (std::sqrt(jumps + moved) + std::sqrt(scaled));
}

// step: the size of Adam's direction of an element that is far above epsilon.
double lambs(const zero::Lamb& lamb, const std::vector<double>& gradient, double relative,
             double factor, double size, double step = 1) {
  const double error = step * adams(1, lamb.epsilon, gradient, relative, factor);
  double squares = 0;
  for (const double g : gradient) squares += std::pow(step * g / (std::abs(g) + lamb.epsilon), 2);
  // The decay may be opposed to Adam's direction.
  const double least = std::sqrt(squares) - lamb.weight_decay * size - error;
  const double ratio = size == 0    ? 1
                       : least <= 0 ? std::max(1.0, lamb.max_coeff)  // 1 if the update is 0
                                    : std::clamp(size / least, lamb.min_coeff, lamb.max_coeff);
  return lamb.learning_rate * ratio * error;
}

// The error may be all in one of the parts. A bound of the rounding of the iteration itself is not
// needed: it is far smaller than that of a gradient.
double muons(const zero::Muon& muon, const std::vector<double>& gradient, double relative,
             const zero::MatrixRow& matrix) {
  const auto columns = static_cast<std::size_t>(matrix.columns);
  const std::size_t rows = gradient.size() / columns;
  std::vector<std::size_t> parts(matrix.parts.begin(), matrix.parts.end());
  if (parts.empty()) parts = {rows};
  std::size_t period = 0, first = 0;
  for (const std::size_t part : parts) period += part;
  const double error = relative * norm(gradient);
  const plain::Muon plain{
      .steps = muon.num_ns_steps,
      .coefficients = muon.coefficients == zero::NewtonSchulzType::simple ? "simple" : "quintic",
      .scale = muon.scale == zero::MuonScale::spectral        ? "spectral"
               : muon.scale == zero::MuonScale::shape_scaling ? "shape_scaling"
                                                              : "unit_rms_norm"};
  const double slope = plain::steepest_slope(plain);
  double squares = 0;
  for (const std::size_t part : parts) {
    double size = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      if (const std::size_t row = i / columns % period; row >= first && row < first + part)
        size += gradient[i] * gradient[i];
    first += part;
    if (size == 0) continue;
    const std::size_t of_part = rows / period * part;
    // No singular value of a result is above 1.3.
    const double most = 2.6 * std::sqrt(static_cast<double>(std::min(of_part, columns)));
    const double scale =
        plain::scale(plain, static_cast<double>(of_part), static_cast<double>(columns));
    squares += std::pow(scale * std::min(most, slope * 2 * error / std::sqrt(size)), 2);
  }
  return muon.learning_rate * muon.extra_scale_factor * std::sqrt(squares);
}

}  // namespace

double first_step_bound(const zero::Rule& rule, const std::vector<double>& gradient,
                        double relative, double factor, double size,
                        const zero::MatrixRow& matrix) {
  const double any_sign = 2 * std::sqrt(static_cast<double>(gradient.size()));
  if (const auto* adam = std::get_if<zero::Adam>(&rule))
    return adam->weight_decay > 0
               ? adam->learning_rate * any_sign
               : adams(adam->learning_rate, adam->epsilon, gradient, relative, factor);
  if (const auto* adamw = std::get_if<zero::AdamW>(&rule))
    return adams(adamw->learning_rate, adamw->epsilon, gradient, relative, factor);
  if (const auto* coded = std::get_if<zero::AdamW8Bit>(&rule))  // codes change later steps only
    return adams(coded->learning_rate, coded->epsilon, gradient, relative, factor);
  if (const auto* lamb = std::get_if<zero::Lamb>(&rule))
    return lambs(*lamb, gradient, relative, factor, size);
  if (const auto* muon = std::get_if<zero::Muon>(&rule))
    return matrix.columns > 0
               ? muons(*muon, gradient, relative, matrix)
               : adams(muon->learning_rate, muon->epsilon, gradient, relative, factor);
  if (const auto* one_bit = std::get_if<zero::OneBitAdam>(&rule)) {
    const double grown = 1 / std::sqrt(1 - one_bit->beta2);
    return adams(one_bit->learning_rate * (1 - one_bit->beta1) * grown, one_bit->epsilon * grown,
                 gradient, relative, factor);
  }
  if (const auto* one_bit = std::get_if<zero::OneBitLamb>(&rule)) {
    const double grown = 1 / std::sqrt(1 - one_bit->beta2);
    return lambs({.learning_rate = one_bit->learning_rate,
                  .epsilon = one_bit->epsilon * grown,
                  .weight_decay = one_bit->weight_decay,
                  .min_coeff = one_bit->min_coeff,
                  .max_coeff = one_bit->max_coeff},
                 gradient, relative, factor, size, (1 - one_bit->beta1) * grown);
  }
  if (std::holds_alternative<zero::Adafactor>(rule))
    throw std::logic_error("Adafactor's first step has no bound");
  if (const auto* lion = std::get_if<zero::Lion>(&rule))
    return adams(lion->learning_rate, 0, gradient, relative, 0);
  if (const auto* rms = std::get_if<zero::RmsProp>(&rule)) {
    const double grown = 1 / std::sqrt(1 - rms->smoothing), rate = rms->learning_rate * grown;
    return rms->weight_decay > 0 ? rate * any_sign
                                 : adams(rate, rms->epsilon * grown, gradient, relative, factor);
  }
  const double rate = std::visit([](const auto& options) { return options.learning_rate; }, rule);
  return rate * (relative + factor) * norm(gradient);
}

}  // namespace suite
