#include "zero/stages/stage2.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/device/kernels.h"

namespace zero {

namespace {

bool is_wholly_tied(const Layout& layout, const Bucket& bucket) {
  const auto begin = layout.segments.begin();
  return std::all_of(
      begin + static_cast<std::ptrdiff_t>(bucket.segments_begin),
      begin + static_cast<std::ptrdiff_t>(bucket.segments_end), [](const Segment& segment) {
        return std::ranges::find(segment.reduce, Over::embedding) != segment.reduce.end();
      });
}

}  // namespace

Stage2::Stage2(StepContext context) : Step(std::move(context)), open_(layout().buckets.size()) {
  for (const Bucket& bucket : layout().buckets)
    if (is_tied(layout(), bucket) && !is_wholly_tied(layout(), bucket))
      machine::reject(
          "ZeRO stage {} with pipelines: a bucket holds tied and other parameters, so the two "
          "stages "
          "would shard the tied ones differently; give the parts of the layout",
          context_.stage);
  context_.states.release_gradients();
  shards_ = zeros({layout().own_elements});
  if (context_.stage == 2)  // stage 3 has the values elsewhere
    make_optimizer([&](Range range) { return context_.states.values(range); });
}

Tensor Stage2::zeros(machine::Shape shape) const {
  const Tensor tensor(context_.device(), context_.plan.gradient_dtype, shape, Category::gradients);
  kernels().fill(tensor, 0);
  return tensor;
}

void Stage2::before_gradients(const Part& part) {
  SHARDMARK_CHECK(micro_batches_.is_open(), ==, true);
  for (Parameter* parameter : part) {
    const int row = context_.states.row(parameter);
    if (context_.plan.rows[static_cast<std::size_t>(row)].frozen) continue;
    const int index = layout().bucket_of[static_cast<std::size_t>(row)];
    if (micro_batches_.is_taken(index)) {
      throw std::logic_error(
          fmt::format("gradient of {} after its bucket was reduced in this pass", parameter->name));
    }
    Tensor& open = open_[static_cast<std::size_t>(index)];
    if (!context_.options.contiguous_gradients) {
      if (!parameter->gradient) parameter->gradient = zeros(context_.states.shape(row));
    } else if (!open) {
      const Bucket& bucket = layout().buckets[static_cast<std::size_t>(index)];
      open = zeros({bucket.range.size()});
      context_.states.view_gradients(bucket, open);
    }
  }
}

Tensor Stage2::take_gradients(std::size_t index) {
  const Bucket& bucket = layout().buckets[index];
  Tensor whole = std::exchange(open_[index], Tensor());
  if (!whole) whole = zeros({bucket.range.size()});
  if (context_.options.contiguous_gradients) {
    context_.states.view_gradients(bucket, Tensor());
    return whole;
  }
  for (const int row : bucket.rows) {
    Tensor& gradient = context_.states.parameter(row).gradient;
    if (!gradient) continue;
    const std::int64_t offset = layout().offsets[static_cast<std::size_t>(row)];
    context_.device().stream().copy(
        whole.slice(offset - bucket.range.begin, gradient.shape()).data(), gradient.data(),
        gradient.bytes());
    context_.device().stream().synchronize();
    context_.poison(gradient);
    gradient = Tensor();
  }
  return whole;
}

void Stage2::reduce_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) {
  const std::int64_t shard = layout().shard_elements(bucket);
  const Tensor sums = shards_.slice(layout().in_shards(bucket).begin, {shard});
  if (bucket.shards == 1) return transfer_kernels().accumulate(gradients, sums);
  const Tensor own = sum_over_dp(bucket, gradients, wire);
  if (wire.dtype() == gradients.dtype() || gradients.dtype() == Dtype::float32)
    return transfer_kernels().accumulate(own, sums);
  const Tensor rounded =  // its content was sent
      gradients.slice(shard * context_.shard_index(bucket), {shard});
  transfer_kernels().cast(own, rounded);
  transfer_kernels().accumulate(rounded, sums);
}

std::int64_t Stage2::offset_in_shards(Range range) const {
  for (const Bucket& bucket : layout().buckets) {
    const Range own = layout().shard(bucket, dp_rank());
    if (own.begin <= range.begin && range.begin < own.end)
      return layout().in_shards(bucket).begin + range.begin - own.begin;
  }
  return 0;  // the range is empty
}

Tensor Stage2::gradients(Range range) const {
  return shards_.slice(offset_in_shards(range), {range.size()});
}

void Stage2::gather_gradients() {
  whole_ = zeros({layout().elements});
  for (const Bucket& bucket : layout().buckets) {
    if (bucket.frozen || bucket.range.size() == 0) continue;
    const Tensor whole = whole_.slice(bucket.range.begin, {bucket.range.size()});
    const Tensor own = gradients(layout().shard(bucket, dp_rank()));
    if (bucket.shards > 1)
      context_.holders(bucket)->all_gather(own, whole, context_.options.all_gather);
    else
      context_.device().stream().copy(whole.data(), own.data(), own.bytes());
    context_.states.view_gradients(bucket, whole);
  }
}

void Stage2::clear_gradients() {
  kernels().fill(shards_, 0);
  if (!whole_) return;
  for (const Bucket& bucket : layout().buckets) context_.states.view_gradients(bucket, Tensor());
  whole_ = Tensor();
}

}  // namespace zero
