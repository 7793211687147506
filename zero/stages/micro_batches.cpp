#include "zero/stages/micro_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/base/error.h"

namespace zero {

MicroBatches::MicroBatches(const StepContext& context)
    : context_(context),
      ready_(context.plan.rows.size()),
      expected_(context.layout().buckets.size()) {
  for (const Bucket& bucket : context.layout().buckets) trained_ += !bucket.frozen;
}

void MicroBatches::begin(bool last) {
  SHARDMARK_CHECK(open_, ==, false);
  SHARDMARK_CHECK(next_, ==, 0u);
  open_ = true;
  last_ = last;
  std::fill(ready_.begin(), ready_.end(), false);
  for (std::size_t i = 0; i < trained_; ++i)
    expected_[i] = static_cast<int>(context_.bucket(i).rows.size());
}

void MicroBatches::ready(const Part& part) {
  SHARDMARK_CHECK(open_, ==, true);
  for (const Parameter* parameter : part) {
    const auto row = static_cast<std::size_t>(context_.states.row(parameter));
    if (context_.plan.rows[row].frozen) continue;
    if (ready_[row])
      throw std::logic_error(
          fmt::format("gradient of {} is ready twice in a micro-batch", parameter->name));
    ready_[row] = true;
    --expected_[static_cast<std::size_t>(context_.layout().bucket_of[row])];
  }
}

void MicroBatches::end() {
  SHARDMARK_CHECK(open_, ==, true);
  open_ = false;
}

std::optional<std::size_t> MicroBatches::take_complete() {
  if (next_ == trained_ || expected_[next_] > 0 || is_tied(context_.bucket(next_))) return {};
  return next_++;
}

std::optional<std::size_t> MicroBatches::take_next() {
  if (next_ < trained_) return next_++;
  next_ = 0;
  return {};
}

bool MicroBatches::is_tied(const Bucket& bucket) const {
  for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
    const auto& reduce = context_.layout().segments[i].reduce;
    if (std::find(reduce.begin(), reduce.end(), Over::embedding) != reduce.end()) return true;
  }
  return false;
}

}  // namespace zero
