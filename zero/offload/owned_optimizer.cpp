#include "zero/offload/owned_optimizer.h"

#include "machine/base/error.h"

namespace zero {

void OwnedOptimizer::update_in_turn(const std::vector<machine::Tensor>& gradients,
                                    double gradient_scale, const Updated& updated) {
  update(gradients, gradient_scale);
  for (std::size_t i = gradients.size(); i-- > 0;) updated(i);
}

InMemoryOptimizer::InMemoryOptimizer(const Rule& rule, const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(rule) {
  owned_.reserve(owned.size());
  for (const OwnedRange& each : owned)
    owned_.emplace_back(each.range, Optimizer(rule, each.values, each.decay_mask));
}

void InMemoryOptimizer::update(const std::vector<machine::Tensor>& gradients,
                               double gradient_scale) {
  update_in_turn(gradients, gradient_scale, [](std::size_t) {});
}

void InMemoryOptimizer::update_in_turn(const std::vector<machine::Tensor>& gradients,
                                       double gradient_scale, const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  ++steps_;
  for (std::size_t i = owned_.size(); i-- > 0;) {
    Optimizer& optimizer = owned_[i].second;
    optimizer.rule() = rule_;
    optimizer.update(gradients[i], gradient_scale);
    updated(i);
  }
}

void InMemoryOptimizer::values_changed() {
  for (auto& [range, optimizer] : owned_) optimizer.values_changed();
}

void InMemoryOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (auto& [range, optimizer] : owned_) optimizer.set_steps(steps);
}

void InMemoryOptimizer::visit(bool, const Visit& call) {
  for (const auto& [range, optimizer] : owned_) call(range, optimizer.states());
}

}  // namespace zero
