#include "zero/stages/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/device/kernels.h"
#include "machine/world/step_clock.h"
#include "zero/cost/cost.h"
#include "zero/stages/data_parallel.h"
#include "zero/stages/stage1.h"
#include "zero/stages/stage2.h"
#include "zero/stages/stage3.h"

namespace zero {

using collectives::Communicator;
using machine::Category;
using machine::Operation;
using machine::Tensor;

namespace {

StepOptions checked(StepOptions options, int stage, const GradientPlan& plan,
                    const FlatStates& states, const Communicators& communicators) {
  if (!(options.clip_norm > 0)) {
    throw std::invalid_argument(fmt::format(
        "clip_norm {}: must be positive, or infinity for no clipping", options.clip_norm));
  }
  const auto positive = [](std::string_view key, std::int64_t value) {
    if (value < 1) throw std::invalid_argument(fmt::format("{} {}: must be positive", key, value));
  };
  positive("allgather_bucket_size", options.allgather_bucket_size);
  positive("stage3_max_live_parameters", options.stage3_max_live_parameters);
  if (options.stage3_prefetch_bucket_size < 0)
    throw std::invalid_argument(fmt::format("stage3_prefetch_bucket_size {}: must not be negative",
                                            options.stage3_prefetch_bucket_size));
  if (const auto wire = options.communication_data_type;
      wire && *wire != plan.gradient_dtype &&
      (plan.gradient_dtype != machine::Dtype::float32 || size_of(*wire) != 2 ||
       !machine::is_floating(*wire))) {
    throw std::invalid_argument(
        fmt::format("communication_data_type {}: gradients are {}; float ones may be bfloat16 or "
                    "half on the wire, others go as they are",
                    machine::name(*wire), machine::name(plan.gradient_dtype)));
  }
  if (options.overlap_comm && plan.dp > 1 && communicators.dp &&
      (communicators.dp->link().transport() != machine::Transport::shared_memory ||
       !states.device().readable_by_host())) {
    throw std::invalid_argument(
        fmt::format("overlap_comm over {} of {}: only shared_memory of host memory may be used by "
                    "a thread of its own",
                    name(communicators.dp->link().transport()), states.device().description()));
  }
  check(options.offload_optimizer, plan.value_dtype);
  check(options.offload_param, stage, options.offload_optimizer);
  return options;
}

bool is_tied(const Layout& layout, const Bucket& bucket) {
  for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
    const auto& reduce = layout.segments[i].reduce;
    if (std::find(reduce.begin(), reduce.end(), Over::embedding) != reduce.end()) return true;
  }
  return false;
}

}  // namespace

Step::Step(int stage, FlatStates& states, const GradientPlan& plan, Communicators communicators,
           StepOptions options)
    : stage_(stage),
      states_(states),
      plan_(plan),
      communicators_(communicators),
      options_(checked(std::move(options), stage, plan, states, communicators)),
      sharded_(stage >= 1 && plan.dp > 1),
      progress_(options_.overlap_comm && plan.dp > 1),
      norm_(states.device(), plan_, states.layout(), communicators.tp, communicators.pp,
            communicators.dp, sharded_, options_.all_gather),
      divisor_(plan.divisor),
      ready_(plan.rows.size()),
      expected_(states.layout().buckets.size()),
      published_(states.layout().buckets.size()) {
  check(communicators.tp, "tp", plan.tp);
  check(communicators.pp, "pp", plan.pp);
  check(communicators.dp, "dp", plan.dp);
  for (const Segment& segment : layout().segments) {
    for (const Over over : segment.reduce) check(communicator(over), name(over), plan.size(over));
  }
  for (const Bucket& bucket : layout().buckets) trained_ += !bucket.frozen;
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

machine::Device& Step::host_memory() {
  if (host_) return *host_;
  host_ = options_.offload_optimizer.host;
  if (!host_) {
    own_host_ = machine::make_host_device();
    // A core is left to the copies.
    own_host_->set_threads(std::max(1, states_.device().threads() - 1));
    host_ = own_host_.get();
  }
  return *host_;
}

void Step::make_optimizer(const std::function<Tensor(Range)>& values) {
  std::vector<OwnedRange> owned;
  for (const Range range : owned_ranges(layout(), sharded_, dp_rank())) {
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
    each.decay_mask = states_.decay_mask(plan_, each.range);
  }
  const StateOptions& where = options_.offload_optimizer;
  machine::Device& host = where.device == OffloadDevice::none ? states_.device() : host_memory();
  optimizer_ = zero::make_optimizer(options_.rule, std::move(owned), where, host);
}

void Step::set_divisor(double divisor) {
  if (!(divisor > 0) || !std::isfinite(divisor))
    throw std::invalid_argument(fmt::format("divisor {}: must be positive", divisor));
  divisor_ = divisor;
}

void Step::set_loss_scale(double scale) {
  if (!(scale > 0) || !std::isfinite(scale))
    throw std::invalid_argument(fmt::format("loss scale {}: must be positive", scale));
  loss_scale_ = scale;
}

// ---- micro-batches

void Step::begin_micro_batch(bool last) {
  SHARDMARK_CHECK(in_micro_batch_, ==, false);
  SHARDMARK_CHECK(reduced_, ==, false);
  SHARDMARK_CHECK(next_, ==, 0u);  // buckets are on their way: there was a last one
  in_micro_batch_ = true;
  last_ = last;
  std::fill(ready_.begin(), ready_.end(), false);
  for (std::size_t i = 0; i < trained_; ++i)
    expected_[i] = static_cast<int>(layout().buckets[i].rows.size());
}

void Step::gradients_ready(const Part& part) {
  SHARDMARK_CHECK(in_micro_batch_, ==, true);
  for (const collectives::Parameter* parameter : part) {
    const auto row = static_cast<std::size_t>(states_.row(parameter));
    if (plan_.rows[row].frozen) continue;
    if (ready_[row])
      throw std::logic_error(
          fmt::format("gradient of {} is ready twice in a micro-batch", parameter->name));
    ready_[row] = true;
    --expected_[static_cast<std::size_t>(layout().bucket_of[row])];
  }
  if (stage_ >= 2 || last_) launch_ready();
}

// Buckets go in their order whatever is ready first: all ranks meet in the same one. Those that
// hold a tied embedding wait for reduce: the other stage may still need this one for its backward.
void Step::launch_ready() {
  while (next_ < trained_ && expected_[next_] == 0 && !is_tied(layout(), layout().buckets[next_]))
    launch(next_++);
}

void Step::end_micro_batch() {
  SHARDMARK_CHECK(in_micro_batch_, ==, true);
  if (stage_ >= 2) {  // the last one goes on beside the next micro-batch
    while (next_ < trained_) launch(next_++);
    next_ = 0;
  }
  close_micro_batch();
  in_micro_batch_ = false;
}

// Of the buckets that need memory of their own, one is under way at a time.
void Step::launch(std::size_t index) {
  const Bucket& bucket = layout().buckets[index];
  if (bucket.range.size() == 0) return;
  wait_for_values();  // that they, too, hold no more memory
  const machine::Dtype wire_dtype =
      plan_.dp > 1 ? options_.communication_data_type.value_or(plan_.gradient_dtype)
                   : plan_.gradient_dtype;
  if (stage_ >= 2 || wire_dtype != plan_.gradient_dtype) collect();
  const machine::During preparing(machine::Part::optimizer);
  const Tensor gradients = take_gradients(index);
  for (const Over over : {Over::embedding, Over::tp}) {
    for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
      const Segment& segment = layout().segments[i];
      if (std::find(segment.reduce.begin(), segment.reduce.end(), over) == segment.reduce.end())
        continue;
      const Tensor part =
          gradients.slice(segment.range.begin - bucket.range.begin, {segment.range.size()});
      communicator(over)->all_reduce(part, part, options_.all_reduce);
    }
  }
  const Tensor wire =
      wire_dtype == gradients.dtype()
          ? gradients
          : Tensor(states_.device(), wire_dtype, {gradients.size()}, Category::buffers);
  under_way_ = {gradients, wire, 0};
  under_way_->ticket =
      transfer(stage_ == 0 ? Operation::all_reduce : Operation::reduce_scatter, wire_dtype,
               stage_ == 0 ? wire.size() : layout().share(bucket),
               fmt::format("gradients of bucket {}", index),
               [this, &bucket, gradients, wire] { reduce_over_dp(bucket, gradients, wire); });
  if (!options_.overlap_comm) collect();
}

void Step::collect() {
  if (!under_way_) return;
  progress_.wait(under_way_->ticket);
  if (stage_ >= 2) poison(under_way_->gradients);
  if (under_way_->wire.data() != under_way_->gradients.data()) poison(under_way_->wire);
  under_way_.reset();
}

// A plan takes its scratch from the device when it runs first: then the caller, whose ledger it is,
// stands still.
Progress::Ticket Step::transfer(Operation operation, machine::Dtype dtype, std::int64_t count,
                                std::string what, const std::function<void()>& job) {
  const Progress::Ticket ticket = progress_.submit([=, this, what = std::move(what)] {
    std::optional<machine::During> over_dp;
    if (plan_.dp > 1) over_dp.emplace(machine::Part::communication, "dp");
    delay(operation, dtype, count);
    try {
      job();
    } catch (const machine::Timeout& timeout) {
      throw machine::Timeout(fmt::format("ZeRO stage {}, {}: {}", stage_, what, timeout.what()));
    }
  });
  if (known_.insert({operation, dtype, count}).second) progress_.wait(ticket);
  return ticket;
}

void Step::delay(Operation operation, machine::Dtype dtype, std::int64_t count) const {
  if (!options_.before_transfer) return;
  const std::int64_t sent = bandwidth_optimal(operation, dtype, plan_.dp, count);
  options_.before_transfer(static_cast<std::size_t>(sent) * machine::size_of(dtype));
}

Tensor Step::take_gradients(std::size_t bucket) {
  return states_.gradients(layout().buckets[bucket].range);
}

// ---- the step

void Step::reduce() {
  SHARDMARK_CHECK(reduced_, ==, false);  // a second sum would count every gradient twice
  SHARDMARK_CHECK(in_micro_batch_, ==, false);
  wait_for_values();
  const machine::During preparing(machine::Part::optimizer);
  if (stage_ < 2) {
    while (next_ < trained_) launch(next_++);
    next_ = 0;
  }
  collect();
  reduced_ = true;
}

StepResult Step::update() {
  SHARDMARK_CHECK(reduced_, ==, true);
  reduced_ = false;
  const machine::During updating(machine::Part::optimizer);
  progress_.wait_all();
  const double divisor = divisor_ * loss_scale_;
  StepResult result;
  result.gradient_norm =
      std::sqrt(norm_.sum_of_squares([this](Range range) { return gradients(range); })) / divisor;
  // Every rank has the same norm, so all skip or none: a state that has seen an infinity never
  // recovers.
  result.updated = std::isfinite(result.gradient_norm);
  if (result.updated) {
    if (result.gradient_norm > options_.clip_norm)
      result.clip_factor = options_.clip_norm / result.gradient_norm;
    std::vector<Tensor> owned;
    for (const Range range : owned_) owned.push_back(gradients(range));
    {
      const bool elsewhere = options_.offload_optimizer.device != OffloadDevice::none ||
                             options_.offload_param.offloads();
      const machine::During moving(elsewhere ? machine::Part::offload : machine::Part::optimizer);
      optimizer_->update_in_turn(owned, result.clip_factor / divisor, [this](std::size_t range) {
        const bool any = sharded_ && owned_[range].size() > 0;
        if (any && bucket_of_owned_[range] < trained_) publish(bucket_of_owned_[range]);
      });
    }
    if (!sharded_) publish_all();
    if (!options_.overlap_comm) wait_for_values();
  }
  clear_gradients();
  return result;
}

void Step::drain() {
  wait_for_values();
  if (!options_.offload_optimizer.is_delayed()) return;
  SHARDMARK_CHECK(in_micro_batch_, ==, false);
  progress_.wait_all();
  optimizer_->drain();
  publish_all();
  wait_for_values();
}

// ---- values

void Step::publish_all() {
  if (stage_ == 0 || (stage_ < 3 && plan_.dp == 1)) return;  // who updates has all
  for (std::size_t bucket = trained_; bucket-- > 0;) publish(bucket);
}

// Every share from its owner, in runs of allgather_bucket_size. Until they come the others' are
// those of before.
void Step::publish(std::size_t index) {
  const Bucket& bucket = layout().buckets[index];
  if (bucket.range.size() == 0) return;
  const Published values = published(bucket);
  const Tensor &own = values.own, &whole = values.whole;
  if (!whole) return;
  if (plan_.dp == 1) return states_.device().stream().copy(whole.data(), own.data(), own.bytes());
  const std::int64_t share = own.size();
  for (int rank = 0; rank < plan_.dp; ++rank)
    if (rank != dp_rank()) poison(whole.slice(rank * share, {share}));
  const std::int64_t run = publish_run(share, plan_.dp, options_.allgather_bucket_size);
  const bool staged = run < share;
  if (staged && !staging_)  // of one size: a run that is shorter than its share has it
    staging_ = Tensor(states_.device(), own.dtype(), {run * plan_.dp}, Category::buffers);
  for (std::int64_t begin = 0; begin < share; begin += run) {
    const std::int64_t size = std::min(run, share - begin);
    const Tensor part = own.slice(begin, {size}),
                 all = staged ? staging_.slice(0, {size * plan_.dp}) : whole;
    publishing_ = published_[index] = transfer(
        Operation::all_gather, own.dtype(), size, fmt::format("values of bucket {}", index),
        [=, this] {
          communicators_.dp->all_gather(part, all, options_.all_gather);
          for (int rank = 0; staged && rank < plan_.dp; ++rank) {
            const Tensor theirs = all.slice(rank * size, {size});
            states_.device().stream().copy(whole.slice(rank * share + begin, {size}).data(),
                                           theirs.data(), theirs.bytes());
          }
        });
  }
}

void Step::before_use(const Part& part) {
  if (publishing_ == 0) return;
  Progress::Ticket last = 0;
  for (const collectives::Parameter* parameter : part) {
    const auto row = static_cast<std::size_t>(states_.row(parameter));
    last = std::max(last, published_[static_cast<std::size_t>(layout().bucket_of[row])]);
  }
  if (last > 0) progress_.wait(last);
}

void Step::wait_for_values() {
  if (publishing_ == 0) return;
  progress_.wait(publishing_);
  if (staging_) states_.device().stream().synchronize();
  staging_ = Tensor();
  publishing_ = 0;
}

void Step::finish() noexcept {
  try {
    wait_for_values();
  } catch (...) {  // whom it concerned has been told, or does not ask any more
  }
  progress_.stop();
}

void Step::poison(const Tensor& freed) const {
  if (options_.poison_freed && freed)
    kernels().fill(freed, std::numeric_limits<double>::quiet_NaN());
}

std::unique_ptr<Step> make_step(int stage, FlatStates& states, const GradientPlan& plan,
                                Communicators communicators, StepOptions options) {
  switch (stage) {
    case 0:
      return std::make_unique<DataParallel>(states, plan, communicators, std::move(options));
    case 1:
      return std::make_unique<Stage1>(states, plan, communicators, std::move(options));
    case 2:
      return std::make_unique<Stage2>(states, plan, communicators, std::move(options));
    case 3:
      return std::make_unique<Stage3>(states, plan, communicators, std::move(options));
  }
  throw std::invalid_argument(
      fmt::format("ZeRO stage {}: there are the stages 0 to {}", stage, num_stages - 1));
}

}  // namespace zero
