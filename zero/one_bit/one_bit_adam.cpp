#include "zero/one_bit/one_bit_adam.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "collectives/compression/volume.h"
#include "machine/base/error.h"
#include "machine/base/reject.h"

namespace zero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Number of an update whose correction of the bias is 1.
constexpr std::int64_t never_corrected = std::numeric_limits<std::int64_t>::max();

}  // namespace

void check_one_bit(const Rule& rule, const OneBitLimits& limits) {
  const OneBitAdam* const adam = std::get_if<OneBitAdam>(&rule);
  if (!adam) return;
  machine::check_positive("freeze_step", adam->freeze_step);
  if (limits.stage != 0)
    machine::reject(
        "optimizer one_bit_adam requires ZeRO stage 0 (got {}), because every rank needs the whole "
        "momentum",
        limits.stage);
  if (limits.offloads)
    machine::reject(
        "optimizer one_bit_adam requires offload_optimizer and offload_param none, because momenta "
        "are summed in whole segments");
  if (limits.compresses_gradients)
    machine::reject(
        "optimizer one_bit_adam requires no gradient-compression, because it compresses momenta");
  if (limits.ep > 1)
    machine::reject(
        "optimizer one_bit_adam requires expert-model-parallel-size 1 (got {}), because momenta "
        "are "
        "summed over dp, which holds different experts",
        limits.ep);
  if (limits.dp > 1 && limits.value_dtype == Dtype::float64)
    machine::reject(
        "optimizer one_bit_adam requires momenta of float (got double), which it codes");
}

std::int64_t one_bit_norms(int dp) { return dp > 1 ? 1 + dp : 0; }

std::size_t one_bit_bytes_held(const Layout& layout, int dp) {
  std::size_t bytes = 0;
  for (const Segment& segment : layout.segments)
    if (dp > 1) bytes += collectives::bytes_held("one_bit", {dp, segment.range.size(), 1, 0, dp});
  return bytes;
}

Rule rule_after(const Rule& rule, std::int64_t updates) {
  const OneBitAdam* const adam = std::get_if<OneBitAdam>(&rule);
  if (!adam || updates < adam->freeze_step) return rule;
  OneBitAdam frozen = *adam;
  frozen.freeze_step = 0;
  return frozen;
}

bool sums_momenta(const Rule& rule) {
  const OneBitAdam* const adam = std::get_if<OneBitAdam>(&rule);
  return adam && adam->freeze_step == 0;
}

OneBitAdamOptimizer::OneBitAdamOptimizer(const Rule& rule, MatrixContext context,
                                         const OwnedRange& owned, CompressionWatch* watch)
    : OwnedOptimizer(rule),
      context_(std::move(context)),
      watch_(watch),
      range_(owned.range),
      states_(make_states(rule, owned.values)) {
  const int dp = context_.plan.dp;
  if (dp == 1) return;
  norm_ = Tensor(context_.device, Dtype::float64, {1}, Category::buffers);
  norms_ = Tensor(context_.device, Dtype::float64, {dp}, Category::buffers);
  host_ = machine::make_host_device_beside(context_.device, machine::Pages::pageable);
  if (!context_.device.readable_by_host())  // staging pins its pages itself
    pages_ = machine::make_host_device_beside(context_.device, machine::Pages::pageable);
  for (const Segment& segment : context_.layout.segments)
    sums_.push_back(collectives::make_compression("one_bit", *host_, *context_.dp,
                                                  segment.range.size(), {}, pages_.get()));
}

double OneBitAdamOptimizer::largest_norm(double own) {
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

// The velocity of SGD with momentum is beta1 / d m + (1 - beta1) g_i, and a rate of zero leaves the
// values as they are.
void OneBitAdamOptimizer::form_momentum(const Tensor& gradient, double gradient_scale) const {
  const double beta1 = adam().beta1;
  context_.kernels().momentum(gradient, (1 - beta1) * gradient_scale,
                              {0, beta1 / context_.plan.dp, 0}, nullptr, states_.master,
                              states_.first_moment, states_.values);
}

void OneBitAdamOptimizer::sum_momenta() {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const Range segment = context_.layout.segments[i].range;
    const Tensor momenta =
        states_.first_moment.slice(segment.begin - range_.begin, {segment.size()});
    if (watch_) watch_->before(i, momenta);
    sums_[i]->run(momenta, momenta);
    if (watch_) watch_->after(i, momenta, *sums_[i]);
  }
}

void OneBitAdamOptimizer::freeze_variance() {
  if (std::exchange(variance_is_frozen_, true)) return;
  std::vector<double> variance = to_doubles(states_.second_moment);
  std::ranges::replace(variance, 0.0, infinity);
  from_doubles(states_.second_moment, variance);
}

// w -= rate decay w, before the rest of the update.
void OneBitAdamOptimizer::decay() const {
  if (adam().weight_decay == 0) return;
  const GradientPlan& plan = context_.plan;
  for (std::size_t row = 0; row < plan.rows.size(); ++row) {
    if (!plan.rows[row].weight_decay || plan.rows[row].frozen) continue;
    const Tensor weight = states_.master.slice(context_.layout.offsets[row] - range_.begin,
                                               {plan.rows[row].elements});
    context_.kernels().scale(weight, 1 - adam().learning_rate * adam().weight_decay, weight);
  }
}

void OneBitAdamOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                                 const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, std::size_t{1});
  const auto& [values, master, momentum, variance] = states_;
  machine::Kernels& kernels = context_.kernels();
  const OneBitAdam& o = adam();
  const bool frozen = is_frozen();
  ++steps_;
  decay();
  if (frozen) {
    freeze_variance();
    form_momentum(gradients.front(), gradient_scale);
    sum_momenta();
    // RMSProp with smoothing 1 divides by the root of a constant variance.
    kernels.rmsprop(momentum, 1, {o.learning_rate, 1, o.epsilon, 0}, nullptr, master, variance,
                    values);
  } else {
    kernels.adamw(gradients.front(), gradient_scale,
                  {o.learning_rate, o.beta1, o.beta2, o.epsilon, 0}, never_corrected, nullptr,
                  master, momentum, variance, values);
  }
  updated(0);
}

void OneBitAdamOptimizer::values_changed() {
  if (states_.master.data() != states_.values.data())
    context_.kernels().cast(states_.values, states_.master);
}

void OneBitAdamOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  variance_is_frozen_ = false;
  for (const auto& sum : sums_) sum->reset();
}

void OneBitAdamOptimizer::visit(bool /*writes*/, const Visit& call) { call(range_, states_); }

}  // namespace zero
