#include "zero/one_bit/one_bit_momenta.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "collectives/compression/volume.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"

namespace zero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

void check_lamb(const OneBitLamb& lamb) {
  if (!(lamb.min_coeff > 0) || !(lamb.max_coeff >= lamb.min_coeff))
    machine::reject("min_coeff is {} and max_coeff is {}; expected 0 < min_coeff <= max_coeff",
                    lamb.min_coeff, lamb.max_coeff);
  if (!(lamb.coeff_beta >= 0 && lamb.coeff_beta < 1))
    machine::reject("coeff_beta is {}; expected 0 <= coeff_beta < 1", lamb.coeff_beta);
  if (!(lamb.factor_min > 0) || !(lamb.factor_max >= lamb.factor_min))
    machine::reject("factor_min is {} and factor_max is {}; expected 0 < factor_min <= factor_max",
                    lamb.factor_min, lamb.factor_max);
  if (!(lamb.factor_threshold > 0))
    machine::reject("factor_threshold is {}; expected a number above 0", lamb.factor_threshold);
}

}  // namespace

std::optional<std::int64_t> freeze_step(const Rule& rule) {
  if (const auto* const adam = std::get_if<OneBitAdam>(&rule)) return adam->freeze_step;
  if (const auto* const lamb = std::get_if<OneBitLamb>(&rule)) return lamb->freeze_step;
  return {};
}

void check_one_bit(const Rule& rule, const OneBitLimits& limits) {
  const std::optional<std::int64_t> warm_up = freeze_step(rule);
  if (!warm_up) return;
  machine::check_positive("freeze_step", *warm_up);
  if (const auto* const lamb = std::get_if<OneBitLamb>(&rule)) check_lamb(*lamb);
  if (limits.stage != 0)
    machine::reject(
        "optimizer {} requires ZeRO stage 0 (got {}), because every rank needs the whole momentum",
        name(rule), limits.stage);
  if (limits.offloads)
    machine::reject(
        "optimizer {} requires offload_optimizer and offload_param none, because momenta are "
        "summed in whole segments",
        name(rule));
  if (limits.compresses_gradients)
    machine::reject("optimizer {} requires no gradient-compression, because it compresses momenta",
                    name(rule));
  if (limits.ep > 1)
    machine::reject(
        "optimizer {} requires expert-model-parallel-size 1 (got {}), because momenta are summed "
        "over dp, which holds different experts",
        name(rule), limits.ep);
  if (limits.dp > 1 && limits.value_dtype == Dtype::float64)
    machine::reject("optimizer {} requires momenta of float (got double), which it codes",
                    name(rule));
}

std::int64_t one_bit_norms(int dp) { return dp > 1 ? 1 + dp : 0; }

std::size_t one_bit_bytes_held(const Layout& layout, int dp) {
  std::size_t bytes = 0;
  for (const Segment& segment : layout.segments)
    if (dp > 1) bytes += collectives::bytes_held("one_bit", {dp, segment.range.size(), 1, 0, dp});
  return bytes;
}

Rule rule_after(const Rule& rule, std::int64_t updates) {
  const std::optional<std::int64_t> warm_up = freeze_step(rule);
  if (!warm_up || updates < *warm_up) return rule;
  Rule frozen = rule;
  if (auto* const adam = std::get_if<OneBitAdam>(&frozen)) adam->freeze_step = 0;
  if (auto* const lamb = std::get_if<OneBitLamb>(&frozen)) lamb->freeze_step = 0;
  return frozen;
}

bool sums_momenta(const Rule& rule) { return freeze_step(rule) == 0; }

OneBitOptimizer::OneBitOptimizer(const Rule& rule, MatrixContext context, const OwnedRange& owned,
                                 CompressionWatch* watch)
    : OwnedOptimizer(rule),
      context_(std::move(context)),
      states_(make_states(rule, owned.values)),
      watch_(watch),
      range_(owned.range) {
  const int dp = context_.plan.dp;
  if (dp == 1) return;
  norm_ = Tensor(context_.device, Dtype::float64, {1}, Category::buffers);
  norms_ = Tensor(context_.device, Dtype::float64, {dp}, Category::buffers);
  place_.emplace(context_.device, context_.dp->link().transport());
  for (const Segment& segment : context_.layout.segments)
    sums_.push_back(collectives::make_compression("one_bit", place_->device(), *context_.dp,
                                                  segment.range.size(), {}, place_->pages()));
}

double OneBitOptimizer::largest_norm(double own) {
  if (context_.plan.dp == 1) return own;
  from_doubles(norm_, {own});
  context_.dp->all_gather(norm_, norms_, context_.all_gather);
  double largest = 0;
  for (const double norm : to_doubles(norms_)) {
    if (!std::isfinite(norm)) return norm;
    largest = std::max(largest, norm);
  }
  return largest;
}

Tensor OneBitOptimizer::of_row(const Tensor& tensor, std::size_t row) const {
  return tensor.slice(context_.layout.offsets[row] - range_.begin,
                      {context_.plan.rows[row].elements});
}

// The velocity of SGD with momentum is beta1 / d m + (1 - beta1) g_i, and a rate of zero leaves the
// values as they are.
void OneBitOptimizer::form_momentum(const Tensor& gradient, double gradient_scale,
                                    double beta1) const {
  context_.kernels().momentum(gradient, (1 - beta1) * gradient_scale,
                              {0, beta1 / context_.plan.dp, 0}, nullptr, states_.master,
                              states_.first_moment, states_.values);
}

void OneBitOptimizer::sum_momenta() {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const Range segment = context_.layout.segments[i].range;
    const Tensor momenta =
        states_.first_moment.slice(segment.begin - range_.begin, {segment.size()});
    if (watch_) watch_->before(i, momenta);
    sums_[i]->run(momenta, momenta);
    if (watch_) watch_->after(i, momenta, *sums_[i]);
  }
}

void OneBitOptimizer::freeze_variance() {
  if (std::exchange(variance_is_frozen_, true)) return;
  std::vector<double> variance = to_doubles(states_.second_moment);
  std::ranges::replace(variance, 0.0, infinity);
  from_doubles(states_.second_moment, variance);
}

void OneBitOptimizer::values_changed() {
  if (states_.master.data() != states_.values.data())
    context_.kernels().cast(states_.values, states_.master);
}

void OneBitOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  variance_is_frozen_ = false;
  for (const auto& sum : sums_) sum->reset();
}

void OneBitOptimizer::visit(bool /*writes*/, const Visit& call) { call(range_, states_); }

}  // namespace zero
