#include "zero/stages/micro_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "machine/base/error.h"

namespace zero {

MicroBatches::MicroBatches(const StepContext& context)
    : context_(context),
      ready_(context.plan.rows.size()),
      expected_(context.layout().buckets.size()) {
  for (const Bucket& bucket : context.layout().buckets) trained_ += !bucket.frozen;
  order_.resize(trained_);
  std::iota(order_.begin(), order_.end(), 0);
}

void MicroBatches::begin(const Pass& pass) {
  SHARDMARK_CHECK(open_, ==, false);
  SHARDMARK_CHECK(next_, ==, 0u);
  open_ = true;
  last_ = pass.last;
  which_ = pass.which;
  backward_ = pass.backward;
  std::vector<bool> added(trained_, pass.gradients == nullptr);
  if (pass.gradients)
    for (const Parameter* parameter : *pass.gradients) {
      const auto row = static_cast<std::size_t>(context_.states.row(parameter));
      const auto bucket = static_cast<std::size_t>(context_.layout().bucket_of[row]);
      if (bucket < trained_) added[bucket] = true;
    }
  order_.clear();
  for (std::size_t bucket = 0; bucket < trained_; ++bucket)
    if (added[bucket]) order_.push_back(bucket);
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
  if (next_ == order_.size() || expected_[order_[next_]] > 0) return {};
  if (context_.stage < 2 && is_tied(context_.layout(), context_.bucket(order_[next_]))) return {};
  return order_[next_++];
}

std::optional<std::size_t> MicroBatches::take_next() {
  if (next_ < order_.size()) return order_[next_++];
  next_ = 0;
  return {};
}

bool MicroBatches::is_taken(int bucket) const {
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(next_);
  return std::find(order_.begin(), end, static_cast<std::size_t>(bucket)) != end;
}

}  // namespace zero
