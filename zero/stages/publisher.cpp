#include "zero/stages/publisher.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace zero {
namespace {

std::string what(std::size_t bucket) { return fmt::format("values of bucket {}", bucket); }

}  // namespace

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
  const std::int64_t shard = own.size();
  for (int rank = 0; rank < dp; ++rank)
    if (rank != context_.shard_index(bucket)) context_.poison(whole.slice(rank * shard, {shard}));
  const std::int64_t run = publish_run(shard, dp, context_.options.allgather_bucket_size);
  const bool broadcasts = broadcasts_values(context_.stage, context_.options);
  const bool staged = run < shard && !broadcasts;
  if (staged && !staging_)  // all runs that are shorter than their shard have this size
    staging_ = Tensor(context_.device(), own.dtype(), {run * dp}, Category::buffers);
  for (std::int64_t begin = 0; begin < shard; begin += run) {
    const std::int64_t size = std::min(run, shard - begin);
    if (broadcasts)
      broadcast(index, values, begin, size);
    else
      all_gather(index, values, begin, size, staged);
  }
}

void Publisher::all_gather(std::size_t index, const Published& values, std::int64_t begin,
                           std::int64_t size, bool staged) {
  const Bucket& bucket = context_.bucket(index);
  const std::int64_t shard = values.own.size();
  const Tensor part = values.own.slice(begin, {size}), whole = values.whole,
               all = staged ? staging_.slice(0, {size * bucket.shards}) : whole;
  machine::Stream& stream = context_.transfer_stream();
  last_ = published_[index] = transfers_.start(
      machine::Operation::all_gather, part.dtype(), size, what(index), [=, this, &stream, &bucket] {
        context_.holders(bucket)->all_gather(part, all, context_.options.all_gather);
        for (int rank = 0; staged && rank < bucket.shards; ++rank) {
          const Tensor theirs = all.slice(rank * size, {size});
          stream.copy(whole.slice(rank * shard + begin, {size}).data(), theirs.data(),
                      theirs.bytes());
        }
      });
}

void Publisher::broadcast(std::size_t index, const Published& values, std::int64_t begin,
                          std::int64_t size) {
  const Bucket& bucket = context_.bucket(index);
  const std::int64_t shard = values.own.size();
  const Tensor part = values.own.slice(begin, {size}), whole = values.whole;
  const int me = context_.shard_index(bucket);
  last_ = published_[index] = transfers_.start(
      machine::Operation::broadcast, part.dtype(), size, what(index), [=, this, &bucket] {
        for (int rank = 0; rank < bucket.shards; ++rank) {
          const Tensor theirs = whole.slice(rank * shard + begin, {size});
          context_.holders(bucket)->run(machine::Operation::broadcast, {},
                                        rank == me ? part : theirs, theirs, machine::Reduction::sum,
                                        rank);
        }
      });
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
