#include "zero/stages/publisher.h"

#include <fmt/format.h>

#include <algorithm>

namespace zero {

std::int64_t publish_run(std::int64_t shard, int dp, std::int64_t allgather_bucket_size) {
  if (shard * dp <= allgather_bucket_size) return shard;
  const std::int64_t run = allgather_bucket_size / dp / alignment * alignment;
  return std::min(shard, std::max(run, alignment));
}

Publisher::Publisher(const StepContext& context, Transfers& transfers)
    : context_(context), transfers_(transfers), published_(context.layout().buckets.size()) {}

void Publisher::publish(std::size_t index, const Published& values) {
  const Tensor &own = values.own, &whole = values.whole;
  if (!whole) return;
  const Bucket& bucket = context_.bucket(index);
  const int dp = bucket.shards;
  if (dp == 1) {
    if (whole.data() != own.data())
      context_.device().stream().copy(whole.data(), own.data(), own.bytes());
    return;
  }
  machine::Stream& stream = context_.transfer_stream();
  const std::int64_t shard = own.size();
  for (int rank = 0; rank < dp; ++rank)
    if (rank != context_.shard_index(bucket)) context_.poison(whole.slice(rank * shard, {shard}));
  const std::int64_t run = publish_run(shard, dp, context_.options.allgather_bucket_size);
  const bool staged = run < shard;
  if (staged && !staging_)  // all runs that are shorter than their shard have this size
    staging_ = Tensor(context_.device(), own.dtype(), {run * dp}, Category::buffers);
  for (std::int64_t begin = 0; begin < shard; begin += run) {
    const std::int64_t size = std::min(run, shard - begin);
    const Tensor part = own.slice(begin, {size}),
                 all = staged ? staging_.slice(0, {size * dp}) : whole;
    last_ = published_[index] = transfers_.start(
        machine::Operation::all_gather, own.dtype(), size,
        fmt::format("values of bucket {}", index), [=, this, &stream, &bucket] {
          context_.holders(bucket)->all_gather(part, all, context_.options.all_gather);
          for (int rank = 0; staged && rank < dp; ++rank) {
            const Tensor theirs = all.slice(rank * size, {size});
            stream.copy(whole.slice(rank * shard + begin, {size}).data(), theirs.data(),
                        theirs.bytes());
          }
        });
  }
}

void Publisher::wait_for(const Part& part) {
  if (last_ == 0) return;
  Transfers::Ticket last = 0;
  for (const Parameter* parameter : part) {
    const auto row = static_cast<std::size_t>(context_.states.row(parameter));
    last = std::max(last, published_[static_cast<std::size_t>(context_.layout().bucket_of[row])]);
  }
  if (last > 0) transfers_.wait(last);
}

void Publisher::wait() {
  if (last_ == 0) return;
  transfers_.wait(last_);
  if (staging_) context_.device().stream().synchronize();
  staging_ = Tensor();
  last_ = 0;
}

}  // namespace zero
