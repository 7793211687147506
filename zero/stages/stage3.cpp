#include "zero/stages/stage3.h"

#include <fmt/format.h>

#include <algorithm>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/world/step_clock.h"

namespace zero {

Stage3::Stage3(StepContext context) : Stage2(std::move(context)), live_(layout().buckets.size()) {
  FlatStates& states = context_.states;
  const Dtype dtype = context_.plan.value_dtype;
  const bool offloads = context_.options.offload_param.offloads();
  if (offloads)
    offloaded_ = std::make_unique<OffloadedValues>(layout(), context_.options.offload_param, dtype,
                                                   states.device(), host_memory());
  if (context_.options.plus_plus.has_secondary())
    secondary_ = std::make_unique<SecondaryShards>(states.device(), dtype, layout(),
                                                   *context_.communicators.hpz);
  if (context_.plan.dp > 1 && context_.options.plus_plus.quantized_weights)
    quantized_weights_ = std::make_unique<QuantizedWeights>(states.device(), layout());
  if (context_.plan.dp > 1 && context_.options.plus_plus.quantized_gradients) {
    const bool two_hops =
        first_hop(context_.options.plus_plus, context_.plan.dp) < context_.plan.dp;
    quantized_gradients_ =
        std::make_unique<QuantizedGradients>(states.device(), layout(), *context_.communicators.dp,
                                             two_hops ? context_.communicators.qgz_near : nullptr,
                                             two_hops ? context_.communicators.qgz_far : nullptr);
  }
  gathered_.resize(live_.size());
  std::int64_t elements = 0;
  for (const Bucket& bucket : layout().buckets) {
    in_value_shards_.push_back(elements);
    if (!offloads || bucket.persistent) elements += layout().shard_elements(bucket);
  }
  value_shards_ = Tensor(states.device(), dtype, {elements}, Category::parameters);
  machine::Stream& stream = states.device().stream();
  for (std::size_t i = 0; i < live_.size(); ++i) {
    const Bucket& bucket = layout().buckets[i];
    const Tensor own = states.values(layout().shard(bucket, dp_rank()));
    if (offloads && !bucket.persistent) {
      offloaded_->put(static_cast<int>(i), own);
      continue;
    }
    stream.copy(shard_of(i).data(), own.data(), own.bytes());
    if (!bucket.persistent) continue;
    live_[i].whole = Tensor(states.device(), dtype, {bucket.range.size()}, Category::parameters);
    stream.copy(live_[i].whole.data(), states.values(bucket.range).data(), live_[i].whole.bytes());
  }
  stream.synchronize();
  context_.poison(states.values());
  states.release_values();
  for (std::size_t i = 0; i < live_.size(); ++i)
    if (live_[i].whole) states.view_values(layout().buckets[i], live_[i].whole);
  if (offloads)
    make_optimizer_of_offloaded();
  else
    make_optimizer(
        [&](Range range) { return value_shards_.slice(offset_in_shards(range), {range.size()}); });
}

void Stage3::make_optimizer_of_offloaded() {
  std::vector<OwnedRange> owned;
  for (const OwnedPart& part : owned_parts(layout(), dp_rank(), offloaded_->slots())) {
    OwnedRange& range = owned.emplace_back();
    range.range = part.range;
    if (part.slot) {
      range.home = offloaded_.get();
      range.slot = *part.slot;
    } else {
      const bool any = part.range.size() > 0;
      range.values =
          value_shards_.slice(any ? in_value_shards_[part.bucket] : 0, {part.range.size()});
    }
  }
  make_optimizer(std::move(owned));
  moved_before_ = offloaded_->moved();
}

OffloadTraffic Stage3::moved() const {
  const OffloadTraffic states = Step::moved();
  return offloaded_ ? states + (offloaded_->moved() - moved_before_) : states;
}

std::string Stage3::offload_note() const {
  const std::string states = Step::offload_note();
  return states.empty() && offloaded_ ? offloaded_->note() : states;
}

std::vector<int> Stage3::buckets_of(const Part& part) const {
  std::vector<int> rows;
  for (const Parameter* parameter : part) rows.push_back(context_.states.row(parameter));
  return bucket_uses(layout(), {rows}).front();
}

Tensor Stage3::shard_of(std::size_t bucket) const {
  return value_shards_.slice(in_value_shards_[bucket],
                             {layout().shard_elements(layout().buckets[bucket])});
}

bool Stage3::is_in_group(std::size_t bucket) const {
  const bool again =
      micro_batches_.is_open() && (micro_batches_.is_backward() || gathered_[bucket]);
  return secondary_ && again && secondary_->has(bucket);
}

void Stage3::fetch(int index) {
  const auto at = static_cast<std::size_t>(index);
  const Bucket& bucket = layout().buckets[at];
  Live& live = live_[at];
  live.whole = Tensor(context_.device(), context_.plan.value_dtype, {bucket.range.size()},
                      Category::parameters);
  if (bucket.range.size() == 0) return;
  context_.poison(live.whole);  // until it is gathered
  const std::int64_t shard = layout().shard_elements(bucket);
  const Tensor whole = live.whole;
  const std::string what = fmt::format("values of bucket {}", index);
  if (is_in_group(at)) {
    live.ticket = transfers_.start(
        machine::Operation::all_gather, context_.plan.value_dtype, secondary_->shard(at).size(),
        what, [this, at, whole] { secondary_->gather(at, whole, context_.options.all_gather); },
        &secondary_->group());
    return;
  }
  gathered_[at] = micro_batches_.is_open();
  const bool codes = quantized_weights_ && micro_batches_.is_open() && bucket.shards > 1;
  // The other gathers of a pass must see the values that forward sees.
  const bool fills = secondary_ && codes == (quantized_weights_ != nullptr) && secondary_->take(at);
  const Tensor own =
      offloaded_ ? whole.slice(shard * context_.shard_index(bucket), {shard}) : shard_of(at);
  const std::function<void()> bring =
      offloaded_ ? offloaded_->bring(index, own) : std::function<void()>();
  live.ticket = transfers_.start(
      machine::Operation::all_gather, codes ? Dtype::uint8 : context_.plan.value_dtype,
      codes ? weight_code_bytes(layout(), bucket) : shard, what,
      [this, at, own, whole, bring, fills, codes, &bucket] {
        if (bring) {
          const machine::During moving(machine::Part::offload);
          bring();
          if (codes && context_.transfers_apart())  // bring copies in the device's stream
            context_.transfer_stream().wait(*context_.device().stream().record());
        }
        if (codes)
          quantized_weights_->gather(*context_.holders(bucket), own, whole,
                                     context_.transfer_stream(), context_.options.all_gather);
        else if (bucket.shards > 1)
          context_.holders(bucket)->all_gather(own, whole, context_.options.all_gather);
        else if (!bring)
          context_.device().stream().copy(whole.data(), own.data(), own.bytes());
        if (fills) secondary_->fill(at, whole, context_.transfer_stream());
      });
}

Tensor Stage3::sum_over_dp(const Bucket& bucket, const Tensor& gradients,
                           const Tensor& wire) const {
  if (!quantized_gradients_) return Stage2::sum_over_dp(bucket, gradients, wire);
  const std::int64_t shard = layout().shard_elements(bucket);
  const Tensor own = gradients.slice(shard * context_.shard_index(bucket), {shard});
  quantized_gradients_->sum(gradients, own, context_.transfer_stream(), context_.transfers_apart());
  return own;
}

void Stage3::drop(int index) {
  Live& live = live_[static_cast<std::size_t>(index)];
  context_.states.view_values(layout().buckets[static_cast<std::size_t>(index)], Tensor());
  context_.poison(live.whole);
  live.whole = Tensor();
}

void Stage3::follow(const std::vector<int>& use) {
  const std::size_t now = uses_.size();
  const Known& known = known_[micro_batches_.which()];
  as_known_ = as_known_ && now < known.uses.size() && known.uses[now] == use;
  uses_.push_back(use);
  for (const int bucket : use)
    live_[static_cast<std::size_t>(bucket)].stays =
        as_known_ && std::ranges::find(known.stay[now], bucket) != known.stay[now].end();
  if (!as_known_) return;
  for (const int bucket : known.ahead[now])
    if (!live_[static_cast<std::size_t>(bucket)].whole) fetch(bucket);
}

void Stage3::before_use(const Part& part) {
  const std::vector<int> buckets = buckets_of(part);
  const bool first = micro_batches_.is_open() && uses_.empty();
  if (first && offloaded_) offloaded_->expect(known_[micro_batches_.which()].fetched);
  for (const int bucket : buckets)
    if (!live_[static_cast<std::size_t>(bucket)].whole) fetch(bucket);
  if (first) as_known_ = true;
  if (micro_batches_.is_open()) follow(buckets);
  for (const int bucket : buckets) {
    Live& live = live_[static_cast<std::size_t>(bucket)];
    transfers_.wait(live.ticket);
    if (live.users++ == 0)
      context_.states.view_values(layout().buckets[static_cast<std::size_t>(bucket)], live.whole);
  }
  Stage2::before_use(part);  // waits for persistent buckets
}

void Stage3::after_use(const Part& part) {
  for (const int bucket : buckets_of(part)) {
    Live& live = live_[static_cast<std::size_t>(bucket)];
    SHARDMARK_CHECK(live.users, >, 0);
    if (--live.users == 0 && !(live.stays && micro_batches_.is_open())) drop(bucket);
  }
}

void Stage3::close_pass() {
  for (std::size_t i = 0; i < live_.size(); ++i) {
    if (layout().buckets[i].persistent || !live_[i].whole || live_[i].users > 0) continue;
    transfers_.wait(live_[i].ticket);  // gathered or kept for a use that did not come
    drop(static_cast<int>(i));
  }
  if (Known& known = known_[micro_batches_.which()]; uses_ != known.uses) {
    std::vector<std::int64_t> elements;
    for (const Bucket& bucket : layout().buckets) elements.push_back(bucket.range.size());
    known.uses = uses_;
    known.stay = kept(uses_, elements, context_.options.stage3_max_reuse_distance);
    known.ahead = prefetches(uses_, elements, context_.options.stage3_prefetch_bucket_size,
                             context_.options.stage3_max_live_parameters, known.stay);
    known.fetched = fetches(uses_, known.ahead, known.stay);
  }
  if (offloaded_) offloaded_->expect({});
  uses_.clear();
  gathered_.assign(gathered_.size(), false);
}

void Stage3::values_changed() {
  if (secondary_) secondary_->expire();
}

Published Stage3::published(std::size_t bucket) const {
  if (!layout().buckets[bucket].persistent) return {};
  return {shard_of(bucket), live_[bucket].whole};
}

}  // namespace zero
