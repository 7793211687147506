#include "zero/stages/step_context.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "machine/base/error.h"
#include "machine/base/reject.h"
#include "zero/eight_bit/adamw_8bit.h"
#include "zero/matrices/adafactor.h"
#include "zero/matrices/muon.h"
#include "zero/one_bit/one_bit_momenta.h"
#include "zero/stages/compressed_reduction.h"
#include "zero/stages/lamb.h"

namespace zero {

using collectives::Communicator;

namespace {

StepOptions checked(StepOptions options, int stage, const GradientPlan& plan,
                    const FlatStates& states, const Communicators& communicators) {
  if (!(options.clip_norm > 0))
    machine::reject("clip_norm is {}; expected a positive number, or infinity for no clipping",
                    options.clip_norm);
  machine::check_positive("allgather_bucket_size", options.allgather_bucket_size);
  if (!(options.gradient_predivide_factor > 0) || !std::isfinite(options.gradient_predivide_factor))
    machine::reject("gradient_predivide_factor is {}; expected a positive number",
                    options.gradient_predivide_factor);
  machine::check_positive("stage3_max_live_parameters", options.stage3_max_live_parameters);
  if (options.stage3_max_reuse_distance < 0)
    machine::reject("stage3_max_reuse_distance is {}; expected 0 or more",
                    options.stage3_max_reuse_distance);
  if (options.stage3_prefetch_bucket_size < 0)
    machine::reject("stage3_prefetch_bucket_size is {}; expected 0 or more",
                    options.stage3_prefetch_bucket_size);
  if (const auto wire = options.communication_data_type;
      wire && *wire != plan.gradient_dtype &&
      (plan.gradient_dtype == Dtype::float64 || *wire == Dtype::float64 ||
       !machine::is_floating(*wire)))
    machine::reject(
        "communication_data_type is {}; expected float, bfloat16 or half for gradients of float, "
        "bfloat16 or half, and double for double (the gradients are {})",
        machine::name(*wire), machine::name(plan.gradient_dtype));
  if (options.overlap_comm && plan.dp > 1 && communicators.dp &&
      !communicators.dp->link().has_own_stream() &&
      (communicators.dp->link().transport() != machine::Transport::shared_memory ||
       !states.device().readable_by_host()))
    machine::reject(
        "overlap_comm requires shared_memory of host memory, or cuda_ipc or nccl with a stream of "
        "the link (got {} of {})",
        name(communicators.dp->link().transport()), states.device().description());
  if (plan.ep > 1 && options.overlap_comm)
    machine::reject("overlap_comm requires ep 1 (got {}), because one thread serves one group",
                    plan.ep);
  check_experts(options, {plan.ep, plan.etp}, plan.tp);
  check_compression(stage, options, plan.dp, plan.gradient_dtype);
  check_lamb(options, plan.value_dtype, plan.gradient_dtype, plan.ep);
  const MatrixLimits limits{
      plan.value_dtype, plan.gradient_dtype, plan.ep,
      options.offload_optimizer.device != OffloadDevice::none || options.offload_param.offloads(),
      options.gradient_compression.algorithm};
  check_muon(options.rule, limits);
  check_adafactor(options.rule, limits);
  check_adamw_8bit(options.rule, limits);
  check_one_bit(options.rule, {stage, plan.dp, plan.ep, plan.value_dtype, limits.offloads,
                               !limits.compression.empty()});
  check(options.plus_plus, {.stage = stage,
                            .dp = plan.dp,
                            .ep = plan.ep,
                            .offloads_values = options.offload_param.offloads(),
                            .values = plan.value_dtype,
                            .gradients = plan.gradient_dtype,
                            .wire = options.communication_data_type,
                            .predivision = predivision(options, plan.dp)});
  check(options.offload_optimizer);
  check(options.offload_param, stage, options.offload_optimizer);
  return options;
}

void check(const Communicator* communicator, std::string_view group, int size) {
  if (size == 1) return;
  if (!communicator)
    throw std::logic_error(fmt::format("the plan reduces over {}, but has no communicator", group));
  SHARDMARK_CHECK(communicator->size(), ==, size);
}

}  // namespace

void check_experts(const StepOptions& options, const Experts& experts, int tp) {
  if (experts.etp == 0 || experts.etp == tp) return;
  const auto refuse = [&](std::string_view what, std::string_view why) {
    machine::reject(
        "{} requires expert-tensor-parallel-size {}, the degree of tp (got {}), because {}", what,
        tp, experts.etp, why);
  };
  constexpr std::string_view other_group = "experts have groups of their own";
  const std::string optimizer = fmt::format("optimizer {}", name(options.rule));
  if (options.overlap_comm) refuse("overlap_comm", "one thread serves one group");
  if (std::holds_alternative<Lamb>(options.rule) || std::holds_alternative<Adafactor>(options.rule))
    refuse(optimizer, "it sums over tp and dp, which hold different experts");
  if (freeze_step(options.rule)) refuse(optimizer, "momenta are summed over dp");
  if (std::holds_alternative<Muon>(options.rule) && experts.etp > 1)
    refuse(optimizer, "Newton-Schulz sums squares of a split matrix over tp");
  if (options.plus_plus.has_secondary()) refuse("zero_hpz_partition_size", other_group);
  if (options.plus_plus.quantized_weights) refuse("zero_quantized_weights", other_group);
  if (options.plus_plus.quantized_gradients) refuse("zero_quantized_gradients", other_group);
  if (!options.gradient_compression.algorithm.empty())
    refuse("gradient-compression", "residuals are those of dp");
}

bool is_sharded(int stage, const GradientPlan& plan) {
  if (stage < 0 || stage >= num_stages)
    machine::reject("ZeRO stage is {}; expected 0 to {}", stage, num_stages - 1);
  return stage >= 1 && plan.most_holders() > 1;
}

StepContext::StepContext(int stage, FlatStates& states, const GradientPlan& plan,
                         Communicators communicators, StepOptions options)
    : stage(stage),
      states(states),
      plan(plan),
      communicators(communicators),
      options(checked(std::move(options), stage, plan, states, communicators)),
      sharded(is_sharded(stage, plan)) {
  check(communicators.tp, "tp", plan.tp);
  check(communicators.pp, "pp", plan.pp);
  check(communicators.dp, "dp", plan.dp);
  check(communicators.edp, "edp", plan.experts_apart() ? plan.size(Over::edp) : 1);
  if (const int size = this->options.plus_plus.hpz_partition_size; size > 1) {
    check(communicators.hpz, "hpz", size);
    SHARDMARK_CHECK(communicators.hpz->rank(), ==, dp_rank() % size);
    if (transfers_apart()) SHARDMARK_CHECK(communicators.hpz->link().has_own_stream(), ==, true);
  }
  if (const int near = first_hop(this->options.plus_plus, plan.dp);
      this->options.plus_plus.quantized_gradients && near < plan.dp) {
    check(communicators.qgz_near, "qgz_near", near);
    check(communicators.qgz_far, "qgz_far", plan.dp / near);
  }
  for (const Segment& segment : layout().segments)
    for (const Over over : segment.reduce)
      check(communicators.over(over), name(over), plan.size(over));
}

bool StepContext::transfers_apart() const {
  return options.overlap_comm && plan.dp > 1 && communicators.dp->link().has_own_stream();
}

Dtype StepContext::wire_dtype() const {
  return plan.most_holders() > 1 ? options.communication_data_type.value_or(plan.gradient_dtype)
                                 : plan.gradient_dtype;
}

void StepContext::poison(const Tensor& freed) const {
  if (options.poison_freed && freed)
    kernels().fill(freed, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace zero
