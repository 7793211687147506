#include "zero/one_bit/one_bit_lamb.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"

namespace zero {
namespace {

// Returns the elements of a row on all ranks of tp.
double whole_elements(const GradientPlan& plan, const GradientRow& row) {
  const bool tied = std::ranges::find(row.reduce, Over::embedding) != row.reduce.end();
  const int replicas = row.replicas / (tied ? plan.size(Over::embedding) : 1);
  return static_cast<double>(row.elements) * plan.tp / replicas;
}

}  // namespace

std::int64_t one_bit_quotients(const GradientPlan& plan) {
  return std::ranges::count(plan.rows, false, &GradientRow::frozen);
}

OneBitLambBytes one_bit_lamb_bytes(const GradientPlan& plan, const Layout& layout) {
  const std::size_t wide = size_of(collectives::gradient_dtype(plan.value_dtype)) *
                           static_cast<std::size_t>(layout.elements);
  const ParameterSums sums = parameter_sums(plan, layout, false);
  const std::int64_t quotients = one_bit_quotients(plan) * (plan.tp > 1 ? 1 + plan.tp : 0);
  return {wide,
          wide + static_cast<std::size_t>(sums.own + sums.gathered + quotients) * sizeof(double)};
}

double next_factor(const OneBitLamb& lamb, double largest_quotient, double part, double last) {
  const double ratio = std::min(1.0, part);
  const double factor =
      std::clamp(largest_quotient * ratio + (1 - ratio), lamb.factor_min, lamb.factor_max);
  return std::clamp(factor, last * (1 - lamb.factor_threshold), last * (1 + lamb.factor_threshold));
}

OneBitLambOptimizer::OneBitLambOptimizer(const Rule& rule, MatrixContext context,
                                         const OwnedRange& owned, CompressionWatch* watch)
    : OneBitOptimizer(rule, std::move(context), owned, watch),
      norms_(context_.device, context_.plan, context_.layout, context_.tp, context_.dp, false,
             context_.all_gather),
      rows_(context_.plan.rows.size()) {
  const std::int64_t elements = states_.master.size(), rows = one_bit_quotients(context_.plan);
  states_.fresh_variance =
      Tensor(context_.device, context_.wide(), {elements}, Category::optimizer);
  context_.kernels().fill(states_.fresh_variance, 0);
  scratch_ = Tensor(context_.device, context_.wide(), {elements}, Category::buffers);
  if (context_.plan.tp == 1) return;
  quotients_ = Tensor(context_.device, Dtype::float64, {rows}, Category::buffers);
  all_quotients_ =
      Tensor(context_.device, Dtype::float64, {rows * context_.plan.tp}, Category::buffers);
}

void OneBitLambOptimizer::square(const Tensor& tensor, ParameterNorms::Of of) const {
  for (const ParameterNorms::Piece& piece : norms_.pieces())
    context_.kernels().sum_of_squares(tensor.slice(piece.range.begin, {piece.range.size()}),
                                      norms_.squares(piece, of));
}

void OneBitLambOptimizer::move(std::size_t row, double ratio) const {
  const Tensor values = of_row(states_.master, row);
  context_.kernels().triad(values, of_row(scratch_, row), lamb().learning_rate * ratio, values);
}

void OneBitLambOptimizer::warm_up(const Tensor& gradient, double gradient_scale) {
  const OneBitLamb& o = lamb();
  machine::Kernels& kernels = context_.kernels();
  // f is not in use yet. No kernel reads 16 bits into values of float.
  const bool narrow = gradient.dtype() != context_.wide();
  if (narrow) kernels.cast(gradient, states_.fresh_variance);
  // A step from zero with rate 1 and without decay is minus the direction.
  kernels.fill(scratch_, 0);
  kernels.adamw(narrow ? states_.fresh_variance : gradient, gradient_scale,
                {1, o.beta1, o.beta2, o.epsilon, 0}, never_corrected, nullptr, scratch_,
                states_.first_moment, states_.second_moment, scratch_);
  if (narrow) kernels.fill(states_.fresh_variance, 0);
  each_row([&](std::size_t row) {
    const Tensor update = of_row(scratch_, row);
    kernels.triad(update, of_row(states_.master, row), -decay_of(row), update);
  });
  square(states_.master, ParameterNorms::values);
  square(scratch_, ParameterNorms::update);
  const auto norms = norms_.norms();
  each_row([&](std::size_t row) {
    const auto [values, update] = norms[row];
    const double ratio =
        values == 0 || update == 0 ? 1 : std::clamp(values / update, o.min_coeff, o.max_coeff);
    double& average = rows_[row].coefficient;
    if (ratio != 1) average = o.coeff_beta * average + (1 - o.coeff_beta) * ratio;
    move(row, ratio);
  });
}

void OneBitLambOptimizer::freeze() {
  context_.device.stream().copy(states_.fresh_variance.data(), states_.second_moment.data(),
                                states_.fresh_variance.bytes());
  freeze_variance();
  square(states_.first_moment, ParameterNorms::values);
  square(states_.first_moment, ParameterNorms::update);
  const auto norms = norms_.norms();
  for (const Segment& segment : context_.layout.segments) {
    std::vector<std::pair<std::size_t, double>> roots;
    double sum = 0;
    each_row([&](std::size_t row) {
      const std::int64_t begin = context_.layout.offsets[row];
      if (begin < segment.range.begin || begin >= segment.range.end) return;
      const double elements = whole_elements(context_.plan, context_.plan.rows[row]);
      roots.emplace_back(row, norms[row][ParameterNorms::values] / std::sqrt(elements));
      sum += roots.back().second;
    });
    for (const auto& [row, root] : roots)
      rows_[row].scaling = root > 0 ? sum / static_cast<double>(roots.size()) / root : 1;
  }
}

std::vector<double> OneBitLambOptimizer::largest_quotients() {
  const double epsilon = lamb().epsilon;
  std::vector<double> mine;
  each_row([&](std::size_t row) {
    const std::vector<double> variance = to_doubles(of_row(states_.second_moment, row)),
                              fresh = to_doubles(of_row(states_.fresh_variance, row));
    double largest = 0;
    for (std::size_t i = 0; i < fresh.size(); ++i)
      if (std::isfinite(variance[i]))
        largest =
            std::max(largest, (std::sqrt(variance[i]) + epsilon) / (std::sqrt(fresh[i]) + epsilon));
    mine.push_back(largest);
  });
  if (context_.plan.tp > 1) {
    from_doubles(quotients_, mine);
    context_.tp->all_gather(quotients_, all_quotients_, context_.all_gather);
    const std::vector<double> all = to_doubles(all_quotients_);
    for (std::size_t i = 0; i < all.size(); ++i)
      mine[i % mine.size()] = std::max(mine[i % mine.size()], all[i]);
  }
  std::vector<double> of_rows(rows_.size());
  std::size_t at = 0;
  each_row([&](std::size_t row) { of_rows[row] = mine[at++]; });
  return of_rows;
}

void OneBitLambOptimizer::step_frozen(const Tensor& gradient, double gradient_scale) {
  const OneBitLamb& o = lamb();
  machine::Kernels& kernels = context_.kernels();
  const auto& [values, master, momentum, variance, scales, fresh] = states_;
  context_.device.stream().copy(scratch_.data(), momentum.data(), scratch_.bytes());
  form_momentum(gradient, gradient_scale, o.beta1);
  const auto scale = [&](bool back) {
    each_row([&](std::size_t row) {
      const Tensor part = of_row(momentum, row);
      kernels.scale(part, back ? 1 / rows_[row].scaling : rows_[row].scaling, part);
    });
  };
  scale(false);
  sum_momenta();
  scale(true);
  // The mean gradient, whose square enters f; a rate of zero leaves the values as they are.
  kernels.scale(scratch_, -o.beta1 / (1 - o.beta1), scratch_);
  kernels.triad(scratch_, momentum, 1 / (1 - o.beta1), scratch_);
  kernels.rmsprop(scratch_, 1, {0, o.beta2, o.epsilon, 0}, nullptr, master, fresh, values);
  // RMSProp with smoothing 1 divides by the root of a constant variance.
  kernels.fill(scratch_, 0);
  kernels.rmsprop(momentum, 1, {1, 1, o.epsilon, 0}, nullptr, scratch_, variance, scratch_);
  square(scratch_, ParameterNorms::values);  // of the update without decay
  each_row([&](std::size_t row) {
    const Tensor update = of_row(scratch_, row);
    kernels.triad(update, of_row(master, row), -decay_of(row), update);
  });
  square(scratch_, ParameterNorms::update);
  const auto norms = norms_.norms();
  const std::vector<double> quotients = largest_quotients();
  each_row([&](std::size_t row) {
    const auto [without_decay, update] = norms[row];
    double& factor = rows_[row].last_factor;
    factor = next_factor(o, quotients[row], update > 0 ? without_decay / update : 1, factor);
    move(row, rows_[row].coefficient * factor);
  });
}

void OneBitLambOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                                 const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, std::size_t{1});
  const bool frozen = is_frozen();
  if (frozen && !variance_is_frozen_) freeze();
  ++steps_;
  if (frozen)
    step_frozen(gradients.front(), gradient_scale);
  else
    warm_up(gradients.front(), gradient_scale);
  if (states_.master.data() != states_.values.data())
    context_.kernels().cast(states_.master, states_.values);
  updated(0);
}

// Loaded states of the warm-up have neither f nor constants: the first momentum makes them.
void OneBitLambOptimizer::set_steps(std::int64_t steps) {
  OneBitOptimizer::set_steps(steps);
  variance_is_frozen_ =
      std::ranges::any_of(rows_, [](const Ratios& of_row) { return of_row.scaling != 0; });
}

}  // namespace zero
