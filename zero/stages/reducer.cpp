#include "zero/stages/reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "zero/zero_plus_plus/quantized_gradients.h"

namespace zero {

using machine::Operation;

void Reducer::make_room() {
  if (context_.stage >= 2 || context_.wire_dtype() != context_.plan.gradient_dtype) collect();
}

void Reducer::reduce(std::size_t index, const Tensor& gradients, const OverDp& over_dp) {
  const Bucket& bucket = context_.bucket(index);
  reduce_segments(bucket, gradients);
  const Dtype wire_dtype = context_.wire_dtype();
  const Tensor wire =
      wire_dtype == gradients.dtype()
          ? gradients
          : Tensor(context_.device(), wire_dtype, {gradients.size()}, Category::gradients);
  under_way_ = {gradients, wire, 0};
  struct Sent {
    Operation operation;
    Dtype dtype;
    std::int64_t count;
  } sent{Operation::reduce_scatter, wire_dtype, context_.layout().shard_elements(bucket)};
  if (context_.all_reduces()) sent = {Operation::all_reduce, wire_dtype, wire.size()};
  if (context_.options.plus_plus.quantized_gradients)  // both hops together send what one sends
    sent = {Operation::all_to_all, Dtype::uint8, gradient_code_bytes(context_.layout(), bucket)};
  under_way_->ticket = transfers_.start(sent.operation, sent.dtype, sent.count,
                                        fmt::format("gradients of bucket {}", index),
                                        [=] { over_dp(gradients, wire); });
  if (!context_.options.overlap_comm) collect();
}

void Reducer::reduce_segments(const Bucket& bucket, const Tensor& gradients) const {
  for (const Over over : {Over::embedding, Over::tp}) {
    if (over == Over::embedding && context_.stage >= 2) continue;  // once, of the shards (step.cpp)
    for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
      const Segment& segment = context_.layout().segments[i];
      if (std::find(segment.reduce.begin(), segment.reduce.end(), over) == segment.reduce.end())
        continue;
      const Tensor part =
          gradients.slice(segment.range.begin - bucket.range.begin, {segment.range.size()});
      context_.communicators.over(over)->all_reduce(part, part, context_.options.all_reduce);
    }
  }
}

void Reducer::collect() {
  if (!under_way_) return;
  transfers_.wait(under_way_->ticket);
  if (context_.stage >= 2) context_.poison(under_way_->gradients);
  if (under_way_->wire.data() != under_way_->gradients.data()) context_.poison(under_way_->wire);
  under_way_.reset();
}

}  // namespace zero
