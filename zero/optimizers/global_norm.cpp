#include "zero/optimizers/global_norm.h"

#include <algorithm>
#include <utility>

#include "machine/device/kernels.h"

namespace zero {

using collectives::Communicator;

NormBuffers norm_buffers(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const std::int64_t shards = sharded ? 1 : plan.dp;
  const int largest = std::max({plan.tp, plan.pp, sharded ? plan.dp : 1});
  return {shards * static_cast<std::int64_t>(layout.segments.size()), shards,
          largest > 1 ? shards * largest : 0};
}

GlobalNorm::GlobalNorm(machine::Device& device, const GradientPlan& plan, const Layout& layout,
                       Communicator* tp, Communicator* pp, Communicator* dp, bool sharded,
                       std::string all_gather)
    : device_(device),
      layout_(layout),
      tp_(tp),
      pp_(pp),
      dp_(sharded ? dp : nullptr),
      all_gather_(std::move(all_gather)) {
  const NormBuffers sizes = norm_buffers(plan, layout, sharded);
  const auto doubles = [&](std::int64_t count) {
    return Tensor(device, Dtype::float64, {count}, Category::buffers);
  };
  squares_ = doubles(sizes.squares);
  partials_ = doubles(sizes.partials);
  gathered_ = doubles(sizes.gathered);
}

double GlobalNorm::sum_of_squares(const std::function<Tensor(Range)>& gradients) {
  machine::Stream& stream = device_.stream();
  const std::size_t num_segments = layout_.segments.size();
  const auto owned_shards = static_cast<std::size_t>(partials_.size());
  const int first_shard = dp_ ? dp_->rank() : 0;
  // Calls visit(shard, segment, elements) for every overlap of a shard with a segment.
  const auto each = [&](const auto& visit) {
    for (std::size_t shard = 0; shard < owned_shards; ++shard) {
      for (const Bucket& bucket : layout_.buckets) {
        const Range owned = layout_.shard(bucket, first_shard + static_cast<int>(shard));
        for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
          const Range part = intersection(owned, layout_.segments[i].range);
          if (part.size() > 0) visit(shard, i, part);
        }
      }
    }
  };
  each([&](std::size_t shard, std::size_t segment, Range part) {
    const auto place = static_cast<std::int64_t>(shard * num_segments + segment);
    stream.kernels().sum_of_squares(gradients(part), squares_.slice(place, {1}));
  });
  const std::vector<double> squares = to_doubles(squares_);
  std::vector<double> partials(owned_shards, 0);
  each([&](std::size_t shard, std::size_t segment, Range) {
    partials[shard] += squares[shard * num_segments + segment] / layout_.segments[segment].replicas;
  });
  for (Communicator* const group : {tp_, pp_, dp_})
    partials = sum_over_ranks(group, std::move(partials), partials_, gathered_, all_gather_);
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum;
}

std::vector<double> sum_over_ranks(Communicator* communicator, std::vector<double> mine,
                                   const Tensor& partials, const Tensor& gathered,
                                   const std::string& all_gather) {
  if (!communicator || communicator->size() == 1 || mine.empty()) return mine;
  const auto ranks = static_cast<std::int64_t>(communicator->size());
  const Tensor all = gathered.slice(0, {ranks * partials.size()});
  from_doubles(partials, mine);
  communicator->all_gather(partials, all, all_gather);
  const std::vector<double> theirs = to_doubles(all);
  std::fill(mine.begin(), mine.end(), 0.0);
  for (std::size_t i = 0; i < theirs.size(); ++i) mine[i % mine.size()] += theirs[i];
  return mine;
}

}  // namespace zero
