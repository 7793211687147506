#include "zero/stages/step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "machine/world/step_clock.h"
#include "zero/eight_bit/adamw_8bit.h"
#include "zero/matrices/adafactor.h"
#include "zero/matrices/muon.h"
#include "zero/one_bit/one_bit_adam.h"
#include "zero/one_bit/one_bit_lamb.h"
#include "zero/stages/data_parallel.h"
#include "zero/stages/lamb.h"
#include "zero/stages/stage1.h"
#include "zero/stages/stage2.h"
#include "zero/stages/stage3.h"

namespace zero {

Step::Step(StepContext context)
    : context_(std::move(context)),
      micro_batches_(context_),
      transfers_(context_),
      compressed_(context_.plan.dp > 1 && !context_.options.gradient_compression.algorithm.empty()
                      ? std::make_unique<CompressedReduction>(context_)
                      : nullptr),
      reducer_(context_, transfers_),
      publisher_(context_, transfers_),
      norm_(context_.device(), context_.plan, layout(), context_.communicators.tp,
            context_.communicators.pp, context_.communicators.dp,
            norm_is_sharded(context_.sharded, context_.plan), context_.options.all_gather),
      divisor_(context_.plan.divisor) {}

machine::Device& Step::host_memory() {
  if (host_) return *host_;
  const StateOptions& states = context_.options.offload_optimizer;
  host_ = states.host;
  if (!host_) {
    const bool pinned = states.device == OffloadDevice::none
                            ? context_.options.offload_param.pin_memory
                            : states.pin_memory;
    own_host_ = machine::make_host_device_beside(
        context_.device(), pinned ? machine::Pages::pinned : machine::Pages::pageable);
    // Leave one core for the copies.
    own_host_->set_threads(std::max(1, context_.device().threads() - 1));
    host_ = own_host_.get();
  }
  return *host_;
}

void Step::make_optimizer(const std::function<Tensor(Range)>& values) {
  std::vector<OwnedRange> owned;
  for (const Range range : owned_ranges(layout(), context_.sharded, dp_rank())) {
    owned.emplace_back().range = range;
    owned.back().values = values(range);
  }
  make_optimizer(std::move(owned));
}

void Step::make_optimizer(std::vector<OwnedRange> owned) {
  for (OwnedRange& each : owned) {
    owned_.push_back(each.range);
    const auto has = [&](const Bucket& bucket) {
      return bucket.range.begin <= each.range.begin && each.range.begin < bucket.range.end;
    };
    const auto& buckets = layout().buckets;
    const auto bucket = std::find_if(buckets.begin(), buckets.end(), has);
    bucket_of_owned_.push_back(static_cast<std::size_t>(bucket - buckets.begin()));
    each.decay_mask = context_.states.decay_mask(context_.plan, each.range);
  }
  if (std::holds_alternative<Lamb>(context_.options.rule)) {
    optimizer_ = std::make_unique<LambOptimizer>(context_, owned);
    return;
  }
  const Rule& rule = context_.options.rule;
  if (std::holds_alternative<AdamW8Bit>(rule)) {
    optimizer_ = std::make_unique<AdamW8BitOptimizer>(rule, layout(), owned);
    return;
  }
  const bool sums_momenta = freeze_step(rule).has_value();
  if (std::holds_alternative<Muon>(rule) || std::holds_alternative<Adafactor>(rule) ||
      sums_momenta) {
    const Communicators& groups = context_.communicators;
    const MatrixContext context{context_.device(),
                                context_.plan,
                                layout(),
                                groups.tp,
                                groups.dp,
                                groups.edp,
                                context_.sharded,
                                context_.options.all_gather,
                                context_.options.all_reduce};
    if (sums_momenta) {
      CompressionWatch* const watch = context_.options.gradient_compression.watch;
      std::unique_ptr<OneBitOptimizer> one_bit;
      if (std::holds_alternative<OneBitAdam>(rule))
        one_bit = std::make_unique<OneBitAdamOptimizer>(rule, context, owned.at(0), watch);
      else
        one_bit = std::make_unique<OneBitLambOptimizer>(rule, context, owned.at(0), watch);
      one_bit_ = one_bit.get();
      optimizer_ = std::move(one_bit);
    } else if (std::holds_alternative<Muon>(rule)) {
      optimizer_ = std::make_unique<MuonOptimizer>(rule, context, owned);
    } else {
      optimizer_ = std::make_unique<AdafactorOptimizer>(rule, context, owned);
    }
    return;
  }
  const StateOptions& where = context_.options.offload_optimizer;
  machine::Device& host = where.device == OffloadDevice::none ? context_.device() : host_memory();
  optimizer_ = zero::make_optimizer(context_.options.rule, std::move(owned), where, host,
                                    context_.plan.gradient_dtype);
}

void Step::set_divisor(double divisor) {
  if (!(divisor > 0) || !std::isfinite(divisor))
    machine::reject("divisor is {}; expected a positive number", divisor);
  divisor_ = divisor;
}

void Step::set_loss_scale(double scale) {
  if (!(scale > 0) || !std::isfinite(scale))
    machine::reject("loss scale is {}; expected a positive number", scale);
  loss_scale_ = scale;
}

// ---- micro-batches

void Step::begin_pass(const Pass& pass) {
  SHARDMARK_CHECK(reduced_, ==, false);
  micro_batches_.begin(pass);
}

void Step::before_use(const Part& part) { publisher_.wait_for(part); }

void Step::gradients_ready(const Part& part) {
  micro_batches_.ready(part);
  if (context_.stage < 2 && !micro_batches_.is_last()) return;
  while (const auto bucket = micro_batches_.take_complete()) launch(*bucket);
}

void Step::end_pass() {
  SHARDMARK_CHECK(micro_batches_.is_open(), ==, true);
  if (context_.stage >= 2)  // the last bucket continues during the next pass
    while (const auto bucket = micro_batches_.take_next()) launch(*bucket);
  close_pass();
  micro_batches_.end();
}

void Step::launch(std::size_t index) {
  const Bucket& bucket = context_.bucket(index);
  if (bucket.range.size() == 0) return;
  wait_for_values();  // frees the staging of the values
  reducer_.make_room();
  const machine::During preparing(machine::Part::optimizer);
  if (sums_momenta()) return reducer_.reduce_segments(bucket, take_gradients(index));
  reducer_.reduce(index, take_gradients(index),
                  [this, &bucket](const Tensor& gradients, const Tensor& wire) {
                    reduce_over_dp(bucket, gradients, wire);
                  });
}

bool Step::sums_momenta() const { return one_bit_ && one_bit_->is_frozen(); }

const machine::Device* Step::compression_host() const {
  return one_bit_ ? one_bit_->host() : compressed_ ? compressed_->host() : nullptr;
}

Tensor Step::take_gradients(std::size_t bucket) {
  context_.states.clear_stale_gradients(context_.bucket(bucket));
  return context_.states.gradients(context_.bucket(bucket).range);
}

Tensor Step::sum_over_dp(const Bucket& bucket, const Tensor& gradients, const Tensor& wire) const {
  const StepOptions& options = context_.options;
  collectives::Communicator& dp = *context_.holders(bucket);
  const std::int64_t shard = wire.size() / bucket.shards;
  const Tensor own =
      context_.stage == 0 ? wire : wire.slice(shard * context_.shard_index(bucket), {shard});
  if (compressed_) {
    compressed_->sum(bucket, gradients);
    return own;
  }
  const double divisor = predivision(options, context_.plan.dp);
  if (divisor != 1) transfer_kernels().scale(gradients, 1 / divisor, gradients);
  if (wire.dtype() != gradients.dtype()) transfer_kernels().cast(gradients, wire);
  if (context_.all_reduces())
    dp.all_reduce(wire, wire, options.all_reduce);
  else
    dp.reduce_scatter(wire, own, options.reduce_scatter);
  if (divisor != 1) transfer_kernels().scale(own, divisor, own);
  return own;
}

// ---- the step

void Step::reduce() {
  SHARDMARK_CHECK(reduced_, ==, false);  // a second sum would count every gradient twice
  SHARDMARK_CHECK(micro_batches_.is_open(), ==, false);
  wait_for_values();
  const machine::During preparing(machine::Part::optimizer);
  if (context_.stage < 2)
    while (const auto bucket = micro_batches_.take_next()) launch(*bucket);
  reducer_.collect();
  if (context_.stage >= 2) reduce_tied_shards();
  reduced_ = true;
}

void Step::set_reduced() {
  SHARDMARK_CHECK(micro_batches_.is_open(), ==, false);
  reduced_ = true;
}

// Both stages have the same tied buckets in the same order, so a rank of dp has the same shards on
// both.
void Step::reduce_tied_shards() {
  for (std::size_t i = 0; i < micro_batches_.trained(); ++i) {
    const Bucket& bucket = context_.bucket(i);
    if (bucket.range.size() == 0 || !is_tied(layout(), bucket)) continue;
    const Tensor sums = gradients(layout().shard(bucket, dp_rank()));
    context_.communicators.over(Over::embedding)
        ->all_reduce(sums, sums, context_.options.all_reduce);
  }
}

StepResult Step::update() {
  SHARDMARK_CHECK(reduced_, ==, true);
  reduced_ = false;
  const machine::During updating(machine::Part::optimizer);
  transfers_.wait_all();
  const double divisor = divisor_ * loss_scale_;
  StepResult result;
  result.gradient_norm =
      std::sqrt(norm_.sum_of_squares([this](Range range) { return gradients(range); })) / divisor;
  double own_norm = result.gradient_norm;
  if (sums_momenta()) {
    own_norm *= context_.plan.dp;
    result.gradient_norm = one_bit_->largest_norm(own_norm);
  }
  // Every rank has the same norm, so either all ranks skip the update or no rank does. A state that
  // has seen an infinity never recovers.
  result.updated = std::isfinite(result.gradient_norm) || !context_.options.check_overflow;
  if (result.updated) {
    if (own_norm > context_.options.clip_norm)
      result.clip_factor = context_.options.clip_norm / own_norm;
    std::vector<Tensor> owned;
    for (const Range range : owned_) owned.push_back(gradients(range));
    values_changed();
    {
      const bool elsewhere = context_.options.offload_optimizer.device != OffloadDevice::none ||
                             context_.options.offload_param.offloads();
      const machine::During moving(elsewhere ? machine::Part::offload : machine::Part::optimizer);
      optimizer_->update(owned, result.clip_factor / divisor, [this](std::size_t range) {
        const bool any = context_.sharded && owned_[range].size() > 0;
        if (any && bucket_of_owned_[range] < micro_batches_.trained())
          publish(bucket_of_owned_[range]);
      });
    }
    if (!context_.sharded) publish_all();
    if (!context_.options.overlap_comm) wait_for_values();
  }
  clear_gradients();
  return result;
}

void Step::drain() {
  wait_for_values();
  if (!context_.options.offload_optimizer.is_delayed()) return;
  SHARDMARK_CHECK(micro_batches_.is_open(), ==, false);
  transfers_.wait_all();
  optimizer_->drain();
  values_changed();
  publish_all();
  wait_for_values();
}

// ---- values

void Step::values_loaded() {
  wait_for_values();
  values_changed();
  publish_all();
  wait_for_values();
}

void Step::publish_all() {
  if (context_.stage == 0 || (context_.stage < 3 && !context_.sharded))
    return;  // the rank that updates has all values
  for (std::size_t bucket = micro_batches_.trained(); bucket-- > 0;) publish(bucket);
}

void Step::publish(std::size_t bucket) {
  if (context_.bucket(bucket).range.size() > 0) publisher_.publish(bucket, published(bucket));
}

Published Step::published(std::size_t index) const {
  const Bucket& bucket = context_.bucket(index);
  return {context_.states.values(layout().shard(bucket, dp_rank())),
          context_.states.values(bucket.range)};
}

void Step::finish() noexcept {
  try {
    wait_for_values();
  } catch (...) {  // the error was reported, or no caller needs it any more
  }
  transfers_.stop();
}

std::unique_ptr<Step> make_step(int stage, FlatStates& states, const GradientPlan& plan,
                                Communicators communicators, StepOptions options) {
  StepContext context(stage, states, plan, communicators, std::move(options));
  if (stage == 0) return std::make_unique<DataParallel>(std::move(context));
  if (stage == 1) return std::make_unique<Stage1>(std::move(context));
  if (stage == 2) return std::make_unique<Stage2>(std::move(context));
  return std::make_unique<Stage3>(std::move(context));
}

}  // namespace zero
