#include "zero/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "machine/device/error.h"
#include "zero/cost.h"
#include "zero/data_parallel.h"
#include "zero/stage1.h"

namespace zero {

using collectives::Communicator;
using machine::Category;
using machine::Dtype;
using machine::Tensor;

Step::Step(FlatStates& states, const GradientPlan& plan, Communicators communicators,
           StepOptions options, bool sharded)
    : states_(states),
      plan_(plan),
      communicators_(communicators),
      options_(std::move(options)),
      sharded_(sharded && plan.dp > 1),
      owned_(sharded_ && communicators.dp ? states.layout().shard(communicators.dp->rank())
                                          : Range{0, states.layout().elements}),
      optimizer_(options_.rule, states.values(owned_), states.decay_mask(plan, owned_)) {
  if (!(options_.clip_norm > 0)) {
    throw std::invalid_argument(fmt::format(
        "clip_norm {}: must be positive, or infinity for no clipping", options_.clip_norm));
  }
  check(communicators.tp, "tp", plan.tp);
  check(communicators.pp, "pp", plan.pp);
  check(communicators.dp, "dp", plan.dp);
  for (const Segment& segment : states.layout().segments) {
    for (const Over over : segment.reduce) check(communicator(over), name(over), plan.size(over));
  }
  const NormBuffers sizes = norm_buffers(plan, states.layout(), sharded_);
  const auto doubles = [&](std::int64_t count) {
    return Tensor(states.device(), Dtype::float64, {count}, Category::buffers);
  };
  squares_ = doubles(sizes.squares);
  partials_ = doubles(sizes.partials);
  gathered_ = doubles(sizes.gathered);
}

void Step::check(Communicator* communicator, std::string_view group, int size) const {
  if (size == 1) return;
  if (!communicator)
    throw std::logic_error(fmt::format("the plan reduces over {}, but has no communicator", group));
  SHARDMARK_CHECK(communicator->size(), ==, size);
}

Communicator* Step::communicator(Over over) const {
  switch (over) {
    case Over::embedding:
      return communicators_.embedding;
    case Over::tp:
      return communicators_.tp;
    case Over::dp:
      return communicators_.dp;
  }
  return nullptr;
}

void Step::reduce() {
  SHARDMARK_CHECK(reduced_, ==, false);  // a second sum would count every gradient twice
  // One group after the other for all segments: ranks meet in each group in the same order.
  for (const Over over : {Over::embedding, Over::tp}) {
    for (const Segment& segment : states_.layout().segments) {
      if (std::find(segment.reduce.begin(), segment.reduce.end(), over) == segment.reduce.end())
        continue;
      const Tensor gradients = states_.gradients(segment.range);
      communicator(over)->all_reduce(gradients, gradients, options_.all_reduce);
    }
  }
  if (plan_.dp > 1 && states_.layout().elements > 0) reduce_over_dp();
  reduced_ = true;
}

StepResult Step::update() {
  SHARDMARK_CHECK(reduced_, ==, true);
  reduced_ = false;
  StepResult result;
  result.gradient_norm = std::sqrt(sum_of_squares()) / plan_.divisor;
  // Every rank has the same norm, so all skip or none: a state that has seen an infinity never
  // recovers.
  result.updated = std::isfinite(result.gradient_norm);
  if (result.updated) {
    if (result.gradient_norm > options_.clip_norm)
      result.clip_factor = options_.clip_norm / result.gradient_norm;
    optimizer_.update(states_.gradients(owned_), result.clip_factor / plan_.divisor);
    if (plan_.dp > 1 && states_.layout().elements > 0) publish_values();
  }
  states_.device().stream().kernels().fill(states_.gradients(), 0);
  return result;
}

// Each element of the model once: a rank adds its squares divided by the replicas of the element,
// and data-parallel copies, which are equal after reduce, are added by their shard's owner alone.
double Step::sum_of_squares() {
  const Layout& layout = states_.layout();
  machine::Stream& stream = states_.device().stream();
  const std::size_t num_segments = layout.segments.size();
  const auto owned_shards = static_cast<std::size_t>(partials_.size());
  const int first_shard = sharded_ ? communicators_.dp->rank() : 0;
  const auto range = [&](std::size_t shard, std::size_t segment) {
    return intersection(layout.shard(first_shard + static_cast<int>(shard)),
                        layout.segments[segment].range);
  };
  for (std::size_t shard = 0; shard < owned_shards; ++shard) {
    for (std::size_t segment = 0; segment < num_segments; ++segment) {
      const Range part = range(shard, segment);
      if (part.size() == 0) continue;
      stream.kernels().sum_of_squares(
          states_.gradients(part),
          squares_.slice(static_cast<std::int64_t>(shard * num_segments + segment), {1}));
    }
  }
  std::vector<double> squares(owned_shards * num_segments);
  stream.copy(squares.data(), squares_.data(), squares_.bytes());
  stream.synchronize();
  std::vector<double> partials(owned_shards, 0);
  for (std::size_t shard = 0; shard < owned_shards; ++shard) {
    for (std::size_t segment = 0; segment < num_segments; ++segment) {
      if (range(shard, segment).size() == 0) continue;
      partials[shard] +=
          squares[shard * num_segments + segment] / layout.segments[segment].replicas;
    }
  }
  partials = sum_over(communicators_.tp, std::move(partials));
  partials = sum_over(communicators_.pp, std::move(partials));
  if (sharded_) partials = sum_over(communicators_.dp, std::move(partials));
  double sum = 0;
  for (const double partial : partials) sum += partial;
  return sum;
}

// Gathered and added here in the order of the ranks: the same bits on all of them, by any
// algorithm.
std::vector<double> Step::sum_over(Communicator* communicator, std::vector<double> mine) {
  if (!communicator || communicator->size() == 1) return mine;
  machine::Stream& stream = states_.device().stream();
  const auto ranks = static_cast<std::int64_t>(communicator->size());
  const Tensor all = gathered_.slice(0, {ranks * partials_.size()});
  stream.copy(partials_.data(), mine.data(), partials_.bytes());
  communicator->all_gather(partials_, all, options_.all_gather);
  std::vector<double> gathered(static_cast<std::size_t>(all.size()));
  stream.copy(gathered.data(), all.data(), all.bytes());
  stream.synchronize();
  std::fill(mine.begin(), mine.end(), 0.0);
  for (std::size_t i = 0; i < gathered.size(); ++i) mine[i % mine.size()] += gathered[i];
  return mine;
}

std::unique_ptr<Step> make_step(int stage, FlatStates& states, const GradientPlan& plan,
                                Communicators communicators, StepOptions options) {
  switch (stage) {
    case 0:
      return std::make_unique<DataParallel>(states, plan, communicators, std::move(options));
    case 1:
      return std::make_unique<Stage1>(states, plan, communicators, std::move(options));
  }
  throw std::invalid_argument(
      fmt::format("ZeRO stage {}: there are the stages 0 to {}", stage, num_stages - 1));
}

}  // namespace zero
