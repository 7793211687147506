#include "zero/stage3.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/device/error.h"
#include "machine/device/kernels.h"

namespace zero {

using machine::Category;
using machine::Tensor;

Stage3::Stage3(FlatStates& states, const GradientPlan& plan, Communicators communicators,
               StepOptions options)
    : Stage2(3, states, plan, communicators, std::move(options)),
      value_shares_(states.device(), plan.value_dtype, {layout().value_elements / plan.dp},
                    Category::parameters),
      live_(layout().buckets.size()) {
  machine::Stream& stream = states.device().stream();
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const Bucket& bucket = layout().buckets[i];
    const Tensor own = states.values(layout().shard(bucket, dp_rank()));
    stream.copy(shares_of(bucket).data(), own.data(), own.bytes());
    if (!bucket.persistent) continue;
    live_[i].whole =
        Tensor(states.device(), plan.value_dtype, {bucket.range.size()}, Category::parameters);
    stream.copy(live_[i].whole.data(), states.values(bucket.range).data(), live_[i].whole.bytes());
  }
  stream.synchronize();
  poison(states.values());
  states.release_values();
  for (std::size_t i = 0; i < live_.size(); ++i)
    if (live_[i].whole) states.view_values(layout().buckets[i], live_[i].whole);
  make_optimizer(
      [&](Range range) { return value_shares_.slice(offset_in_shards(range), {range.size()}); });
}

std::vector<int> Stage3::buckets_of(const Part& part) const {
  std::vector<int> buckets;
  for (const collectives::Parameter* parameter : part) {
    const int bucket = layout().bucket_of[static_cast<std::size_t>(states_.row(parameter))];
    if (!layout().buckets[static_cast<std::size_t>(bucket)].persistent &&
        std::find(buckets.begin(), buckets.end(), bucket) == buckets.end())
      buckets.push_back(bucket);
  }
  return buckets;
}

Tensor Stage3::shares_of(const Bucket& bucket) const {
  const Range range = layout().in_shards(bucket);
  return value_shares_.slice(range.begin, {range.size()});
}

void Stage3::fetch(int index) {
  const Bucket& bucket = layout().buckets[static_cast<std::size_t>(index)];
  Live& live = live_[static_cast<std::size_t>(index)];
  live.whole =
      Tensor(states_.device(), plan_.value_dtype, {bucket.range.size()}, Category::parameters);
  if (bucket.range.size() == 0) return;
  poison(live.whole);  // until it is gathered
  const Tensor own = shares_of(bucket), whole = live.whole;
  live.ticket = transfer(machine::Operation::all_gather, plan_.value_dtype, own.size(),
                         fmt::format("values of bucket {}", index), [this, own, whole] {
                           if (plan_.dp > 1)
                             communicators_.dp->all_gather(own, whole, options_.all_gather);
                           else
                             states_.device().stream().copy(whole.data(), own.data(), own.bytes());
                         });
}

void Stage3::drop(int index) {
  Live& live = live_[static_cast<std::size_t>(index)];
  states_.view_values(layout().buckets[static_cast<std::size_t>(index)], Tensor());
  poison(live.whole);
  live.whole = Tensor();
}

void Stage3::follow(const std::vector<int>& use) {
  const std::size_t now = uses_.size();
  as_known_ = as_known_ && now < known_uses_.size() && known_uses_[now] == use;
  uses_.push_back(use);
  if (!as_known_) return;
  for (const int bucket : ahead_[now])
    if (!live_[static_cast<std::size_t>(bucket)].whole) fetch(bucket);
}

void Stage3::before_use(const Part& part) {
  const std::vector<int> buckets = buckets_of(part);
  for (const int bucket : buckets)
    if (!live_[static_cast<std::size_t>(bucket)].whole) fetch(bucket);
  if (in_micro_batch()) {
    if (uses_.empty()) as_known_ = true;
    follow(buckets);
  }
  for (const int bucket : buckets) {
    Live& live = live_[static_cast<std::size_t>(bucket)];
    progress_.wait(live.ticket);
    if (live.users++ == 0)
      states_.view_values(layout().buckets[static_cast<std::size_t>(bucket)], live.whole);
  }
  Stage2::before_use(part);  // persistent ones
}

void Stage3::after_use(const Part& part) {
  for (const int bucket : buckets_of(part)) {
    Live& live = live_[static_cast<std::size_t>(bucket)];
    SHARDMARK_CHECK(live.users, >, 0);
    if (--live.users == 0) drop(bucket);
  }
}

void Stage3::close_micro_batch() {
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (layout().buckets[i].persistent || !live_[i].whole || live_[i].users > 0) continue;
    progress_.wait(live_[i].ticket);  // gathered ahead of a use that did not come
    drop(static_cast<int>(i));
  }
  if (uses_ != known_uses_) {
    std::vector<std::int64_t> elements;
    for (const Bucket& bucket : layout().buckets) elements.push_back(bucket.range.size());
    known_uses_ = uses_;
    ahead_ = prefetches(known_uses_, elements, options_.stage3_prefetch_bucket_size,
                        options_.stage3_max_live_parameters);
  }
  uses_.clear();
}

Step::Published Stage3::published(const Bucket& bucket) const {
  if (!bucket.persistent) return {};
  const auto index = static_cast<std::size_t>(&bucket - layout().buckets.data());
  return {shares_of(bucket), live_[index].whole};
}

}  // namespace zero
