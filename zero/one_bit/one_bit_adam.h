#pragma once
// 1-bit Adam (Tang et al. 2021, arXiv:2102.02888, Algorithm 1), in ZeRO stage 0 as in DeepSpeed.
//
//   warm-up   freeze_step updates of Adam without correction of the bias, from summed gradients
//   then      the variance v is constant, and momenta m are summed (one_bit_momenta.h)
//   update    w -= learning_rate (m / (sqrt(v) + epsilon) + weight_decay w)

#include <vector>

#include "zero/one_bit/one_bit_momenta.h"

namespace zero {

class OneBitAdamOptimizer final : public OneBitOptimizer {
 public:
  using OneBitOptimizer::OneBitOptimizer;

  void update(const std::vector<Tensor>& gradients, double gradient_scale,
              const Updated& updated) override;

 private:
  const OneBitAdam& adam() const { return std::get<OneBitAdam>(rule_); }
  void decay() const;
};

}  // namespace zero
