#include "zero/offload/owned_optimizer.h"

#include <algorithm>
#include <stdexcept>

#include "machine/base/error.h"

namespace zero {

InMemoryOptimizer::InMemoryOptimizer(const Rule& rule, std::vector<OwnedRange> owned)
    : OwnedOptimizer(rule), owned_(std::move(owned)) {
  const OwnedRange& first = owned_.at(0);
  own_masters_ = !kept_states(rule, first.dtype()).master;
  std::int64_t longest = 0;
  for (const OwnedRange& each : owned_) {
    any_home_ = any_home_ || each.home;
    if (each.home) longest = std::max(longest, each.size());
  }
  if (any_home_) staging_ = Tensor(first.device(), first.dtype(), {longest}, Category::buffers);
  optimizers_.reserve(owned_.size());
  for (std::size_t i = 0; i < owned_.size(); ++i)
    with_values(i, true, false, [&] {
      optimizers_.emplace_back(rule, on_device(i), std::exchange(owned_[i].decay_mask, {}));
    });
  moved_ = {};
}

Tensor InMemoryOptimizer::on_device(std::size_t owned) const {
  return owned_[owned].home ? staging_.slice(0, {owned_[owned].size()}) : owned_[owned].values;
}

void InMemoryOptimizer::with_values(std::size_t owned, bool load, bool store,
                                    const std::function<void()>& work) {
  if (broken_) throw std::logic_error("the optimizer of offloaded values is used after an error");
  const OwnedRange& range = owned_[owned];
  if (!range.home || range.size() == 0) return work();
  broken_ = true;
  const Tensor here = on_device(owned), there = range.open(load);
  machine::Stream& stream = here.device().stream();
  if (load) stream.copy(here.data(), there.data(), here.bytes());
  work();
  if (store) stream.copy(there.data(), here.data(), here.bytes());
  stream.synchronize();
  range.close(store);
  if (load) moved_.up += here.bytes();
  if (store) moved_.down += here.bytes();
  broken_ = false;
}

// If any range has a home, ranges are updated in order, because homes read ahead in this order.
// Otherwise the last range is updated first.
void InMemoryOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                               const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, owned_.size());
  ++steps_;
  for (std::size_t at = 0; at < owned_.size(); ++at) {
    const std::size_t i = any_home_ ? at : owned_.size() - 1 - at;
    with_values(i, own_masters_, true, [&] {
      optimizers_[i].rule() = rule_;
      optimizers_[i].update(gradients[i], gradient_scale);
    });
    if (!any_home_) updated(i);
  }
  for (std::size_t i = owned_.size(); any_home_ && i-- > 0;) updated(i);
}

void InMemoryOptimizer::values_changed() {
  for (std::size_t i = 0; i < owned_.size() && !own_masters_; ++i)
    with_values(i, true, false, [&] { optimizers_[i].values_changed(); });
}

void InMemoryOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (Optimizer& optimizer : optimizers_) optimizer.set_steps(steps);
}

void InMemoryOptimizer::visit(bool writes, const Visit& call) {
  for (std::size_t i = 0; i < owned_.size(); ++i)
    with_values(i, true, writes, [&] { call(owned_[i].range, optimizers_[i].states()); });
}

}  // namespace zero
