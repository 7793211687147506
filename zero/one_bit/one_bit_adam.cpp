#include "zero/one_bit/one_bit_adam.h"

#include <variant>

#include "machine/base/error.h"

namespace zero {

// w -= rate decay w, before the rest of the update.
void OneBitAdamOptimizer::decay() const {
  if (adam().weight_decay == 0) return;
  each_row([&](std::size_t row) {
    if (!context_.plan.rows[row].weight_decay) return;
    const Tensor weight = of_row(states_.master, row);
    context_.kernels().scale(weight, 1 - adam().learning_rate * adam().weight_decay, weight);
  });
}

void OneBitAdamOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                                 const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, std::size_t{1});
  const auto& [values, master, momentum, variance, scales, fresh_variance] = states_;
  machine::Kernels& kernels = context_.kernels();
  const OneBitAdam& o = adam();
  const bool frozen = is_frozen();
  ++steps_;
  decay();
  if (frozen) {
    freeze_variance();
    form_momentum(gradients.front(), gradient_scale, o.beta1);
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

}  // namespace zero
