#include "zero/stages/stage2.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/kernels.h"

namespace zero {

using machine::Category;
using machine::Tensor;

Stage2::Stage2(FlatStates& states, const GradientPlan& plan, Communicators communicators,
               StepOptions options)
    : Stage2(2, states, plan, communicators, std::move(options)) {
  make_optimizer([&](Range range) { return states_.values(range); });
}

Stage2::Stage2(int stage, FlatStates& states, const GradientPlan& plan, Communicators communicators,
               StepOptions options)
    : Step(stage, states, plan, communicators, std::move(options)),
      open_(states.layout().buckets.size()) {
  if (plan.pp > 1) {
    throw std::invalid_argument(
        fmt::format("ZeRO stage {} with pipeline-model-parallel-size {}: gradients are reduced in "
                    "every micro-batch, which goes with stages 0 and 1 only",
                    stage, plan.pp));
  }
  states.release_gradients();
  shares_ = zeros({layout().elements / plan.dp});
}

Tensor Stage2::zeros(machine::Shape shape) const {
  const Tensor tensor(states_.device(), plan_.gradient_dtype, shape, Category::gradients);
  kernels().fill(tensor, 0);
  return tensor;
}

void Stage2::before_gradients(const Part& part) {
  SHARDMARK_CHECK(in_micro_batch(), ==, true);
  for (collectives::Parameter* parameter : part) {
    const int row = states_.row(parameter);
    if (plan_.rows[static_cast<std::size_t>(row)].frozen) continue;
    const int index = layout().bucket_of[static_cast<std::size_t>(row)];
    if (launched(index)) {
      throw std::logic_error(fmt::format(
          "gradient of {} after its bucket was reduced in this micro-batch", parameter->name));
    }
    Tensor& open = open_[static_cast<std::size_t>(index)];
    if (!options_.contiguous_gradients) {
      if (!parameter->gradient) parameter->gradient = zeros(states_.shape(row));
    } else if (!open) {
      const Bucket& bucket = layout().buckets[static_cast<std::size_t>(index)];
      open = zeros({bucket.range.size()});
      states_.view_gradients(bucket, open);
    }
  }
}

Tensor Stage2::take_gradients(std::size_t index) {
  const Bucket& bucket = layout().buckets[index];
  Tensor whole = std::exchange(open_[index], Tensor());
  if (!whole) whole = zeros({bucket.range.size()});
  if (options_.contiguous_gradients) {
    states_.view_gradients(bucket, Tensor());
    return whole;
  }
  for (const int row : bucket.rows) {
    Tensor& gradient = states_.parameter(row).gradient;
    if (!gradient) continue;
    const std::int64_t offset = layout().offsets[static_cast<std::size_t>(row)];
    states_.device().stream().copy(
        whole.slice(offset - bucket.range.begin, gradient.shape()).data(), gradient.data(),
        gradient.bytes());
    states_.device().stream().synchronize();
    poison(gradient);
    gradient = Tensor();
  }
  return whole;
}

void Stage2::reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) {
  const std::int64_t share = layout().share(bucket);
  const Tensor sums = shares_.slice(layout().in_shards(bucket).begin, {share});
  if (plan_.dp == 1) return kernels().accumulate(gradients, sums);
  const Tensor own = wire.slice(share * dp_rank(), {share});
  if (wire.dtype() != gradients.dtype()) kernels().cast(gradients, wire);
  communicators_.dp->reduce_scatter(wire, own, options_.reduce_scatter);
  kernels().accumulate(own, sums);
}

std::int64_t Stage2::offset_in_shards(Range range) const {
  for (const Bucket& bucket : layout().buckets) {
    const Range own = layout().shard(bucket, dp_rank());
    if (own.begin <= range.begin && range.begin < own.end)
      return layout().in_shards(bucket).begin + range.begin - own.begin;
  }
  return 0;  // of nothing
}

Tensor Stage2::gradients(Range range) const {
  return shares_.slice(offset_in_shards(range), {range.size()});
}

void Stage2::gather_gradients() {
  whole_ = zeros({layout().elements});
  for (const Bucket& bucket : layout().buckets) {
    if (bucket.frozen || bucket.range.size() == 0) continue;
    const Tensor whole = whole_.slice(bucket.range.begin, {bucket.range.size()});
    const Tensor own = gradients(layout().shard(bucket, dp_rank()));
    if (plan_.dp > 1)
      communicators_.dp->all_gather(own, whole, options_.all_gather);
    else
      states_.device().stream().copy(whole.data(), own.data(), own.bytes());
    states_.view_gradients(bucket, whole);
  }
}

void Stage2::clear_gradients() {
  kernels().fill(shares_, 0);
  if (!whole_) return;
  for (const Bucket& bucket : layout().buckets) states_.view_gradients(bucket, Tensor());
  whole_ = Tensor();
}

}  // namespace zero
