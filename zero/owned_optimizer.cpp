#include "zero/owned_optimizer.h"

#include "machine/device/error.h"

namespace zero {

InMemoryOptimizer::InMemoryOptimizer(const Rule& rule, const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(rule) {
  owned_.reserve(owned.size());
  for (const OwnedRange& each : owned)
    owned_.emplace_back(each.range, Optimizer(rule, each.values, each.decay_mask));
}

void InMemoryOptimizer::update(const std::vector<machine::Tensor>& gradients,
                               double gradient_scale) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  ++steps_;
  for (std::size_t i = 0; i < owned_.size(); ++i) {
    Optimizer& optimizer = owned_[i].second;
    optimizer.rule() = rule_;
    optimizer.update(gradients[i], gradient_scale);
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
