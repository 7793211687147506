#include "suite/predict/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "layers/models/fp8_cost.h"
#include "layers/models/gpt_cost.h"
#include "pipeline/simulate.h"
#include "suite/plan/model_shape.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/counted_keys.h"
#include "suite/predict/kernel_time.h"
#include "suite/predict/zero/update_time.h"
#include "suite/reference/boundary_traffic.h"
#include "suite/trainer/model_chunks.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/quantized_weights.h"

namespace suite::predict {
namespace {

using layers::RecomputeGranularity;
using machine::Operation;

double width(const TrainingConfig& config) {
  return static_cast<double>(machine::size_of(config.precision.dtype));
}

pipeline::Size size_of(const TrainingConfig& config, const pipeline::Schedule& schedule) {
  return {.stages = config.degrees.pp,
          .micro_batches = config.micro_batches(),
          .chunks = schedule.any_chunks ? config.pipeline.virtual_stages.value_or(schedule.chunks)
                                        : schedule.chunks};
}

// A message between two stages.
struct Boundary {
  double bytes = 0, seconds = 0;
  bool on_network = false;
};
Boundary boundary(const TrainingConfig& config, const Cluster& cluster, const Software& software) {
  Boundary out;
  if (config.degrees.pp == 1) return out;
  const double whole = static_cast<double>(config.batch.micro_batch_size) * config.model.sequence /
                       config.degrees.cp * config.model.hidden * width(config);
  const int t = config.degrees.tp;
  const bool split = config.activations.sequence_parallel || software.p2p_scattered;
  out.bytes = whole / (split ? t : 1);
  const int stride = t * config.degrees.cp * config.degrees.dp;
  const Spread pair = spread(cluster, 2, stride);
  const Connection link = connection(cluster, pair);
  out.on_network = pair.leaves_node();
  out.seconds = link.latency_s + out.bytes / link.rate;
  if (split && !config.activations.sequence_parallel)
    out.seconds += collective_s(cluster, Operation::all_gather, spread(cluster, t, 1), whole);
  return out;
}

struct Pipelined {
  double makespan_s = 0;
  std::vector<double> busy_s;
};
Pipelined pipelined(const TrainingConfig& config, const std::vector<StageSeconds>& stages,
                    const Boundary& boundary, const Software& software, Pipeline mode) {
  const int m = config.micro_batches();
  if (stages.size() == 1) {
    const double busy = m * (stages[0].forward.total() + stages[0].backward());
    return {busy, {busy}};
  }
  const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
  const pipeline::Size size = size_of(config, schedule);
  // A copy of the model is split into stages times this number of parts.
  const int chunks = schedule.placement(size).parts() / size.stages;
  const double blocked = software.p2p_overlap ? 0 : boundary.seconds;
  std::vector<pipeline::Costs> costs;
  for (const StageSeconds& one : stages)
    costs.push_back(
        {.forward = one.forward.total() / chunks + blocked,
         .backward_input = (one.recompute.total() + one.backward_input.total()) / chunks + blocked,
         .backward_weights = one.backward_weights.total() / chunks,
         .transfer = boundary.seconds - blocked});
  if (mode == Pipeline::lower_bound) {
    Pipelined bound;
    for (const pipeline::Costs& one : costs)
      bound.busy_s.push_back(m * chunks * (one.forward + one.backward()));
    bound.makespan_s = *std::ranges::max_element(bound.busy_s);
    return bound;
  }
  const pipeline::Simulation simulation =
      pipeline::simulate_or_fault(all_stages(schedule, size), costs, false);
  if (simulation.fault) throw std::invalid_argument(simulation.fault->what);
  return {simulation.makespan_s, simulation.busy_s};
}

void add_group(Prediction& out, const GroupTime& group) { add(out.groups, group); }

// Returns the bytes of the layers' collectives of a group on a stage.
double bytes_of_layers(const TrainingConfig& config, std::string_view group, int stage) {
  const layers::StageCase one = stage_case(config, stage);
  const layers::GptConfig shape = shape_of_rank(config);
  double bytes = 0;
  for (const auto& calls :
       {layers::forward_calls(shape, one), layers::backward_input_calls(shape, one),
        layers::backward_weights_calls(shape, one)})
    for (const collectives::CollectiveCalls& one : calls_over(group, calls))
      bytes += sent_bytes(config, one);
  return bytes * config.micro_batches();
}

double cp_bytes(const TrainingConfig& config, int stage) {
  const layers::StageCase one = context_case(config, stage);
  double bytes = 0;
  for (const auto& messages : {layers::forward_messages(config.model, one),
                               layers::backward_input_messages(config.model, one)})
    for (const auto& [group, labels] : messages)
      if (group.starts_with("cp"))
        for (const auto& [label, traffic] : labels)
          bytes += static_cast<double>(traffic.bytes_sent);
  for (const auto& calls :
       {layers::forward_calls(config.model, one), layers::backward_input_calls(config.model, one)})
    bytes += sent_bytes(calls_over("cp", calls));
  return bytes * config.micro_batches();
}

// Returns the messages between stages that a stage sends.
double messages_of_stage(const TrainingConfig& config, int stage) {
  const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
  const pipeline::Placement placement = schedule.placement(size_of(config, schedule));
  return static_cast<double>(
      boundary_traffic(placement, stage, config.micro_batches(), 1).messages_sent);
}

// Returns the messages of the experts' layers on the slowest stage.
double ep_bytes(const TrainingConfig& config, int stage) {
  if (!config.model.has_experts()) return 0;
  const layers::MoeCost cost = moe_cost(mixture_case(config));
  const bool full = config.activations.recompute_granularity == RecomputeGranularity::full;
  return count_layers(config, stage).with_experts * config.micro_batches() *
         ((full ? 2 : 1) * expert_bytes(cost.forward) + expert_bytes(cost.backward_input));
}

void add_flops(Prediction& out, const TrainingConfig& config, const Cluster& cluster) {
  out.tokens = static_cast<double>(config.tokens());
  out.model_flops = layers::model_flops(config.model, config.tokens());
  const double h = config.model.hidden;
  const double core = out.tokens * config.model.layers * 2 * h * config.model.sequence;
  double again = 0;
  if (config.activations.recompute_granularity == RecomputeGranularity::full)
    again = (out.model_flops / 3 - 2 * out.tokens * h * config.model.vocabulary);
  if (config.activations.recompute_granularity == RecomputeGranularity::selective) again = core;
  out.hardware_flops = out.model_flops + again;
  const double peak = cluster.gpu.peak(config.precision.dtype) * config.degrees.ranks();
  out.mfu = out.model_flops / out.step_s / peak;
  out.hfu = out.hardware_flops / out.step_s / peak;
}

// The formulas of the papers count all parameters in the same way. Frozen parameters have no
// gradients and no states; Muon and Adafactor have the states and buffers of zero/cost/cost.h.
void add_declared_memory(configuration::Bytes& gpu, const TrainingConfig& config,
                         const ZeroCalls& zero) {
  const auto& [schedules, plan, parts, layout, selected, passes] = zero.declared;
  const double trained =
      static_cast<double>(layout.elements) / static_cast<double>(layout.value_elements);
  gpu.gradients *= trained;
  gpu.optimizer *= trained;
  const std::string& rule = config.optimizer.type;
  if (rule == "muon" || rule == "adafactor") {
    const zero::ExpectedMemory held = zero::expected_memory(
        config.zero.stage, plan, layout, zero.options.rule, zero.options, passes, selected);
    gpu.optimizer = static_cast<double>(held.optimizer);
    gpu.buffers += static_cast<double>(held.buffers);
  }
  const zero::PlusPlusOptions& plus_plus = zero.options.plus_plus;
  if (plus_plus.quantized_weights)
    gpu.buffers += static_cast<double>(zero::quantized_weights_bytes(layout));
  if (plus_plus.quantized_gradients)
    gpu.buffers += static_cast<double>(
        zero::quantized_gradients_bytes(layout, zero::first_hop(plus_plus, config.shards())));
  if (!config.zero.options.gradient_compression.algorithm.empty())  // errors, in float
    gpu.buffers += 4 * static_cast<double>(layout.elements) * (1 + 1.0 / config.shards());
}

// Operands in 8 bits and in float while a product runs, and the scales.
void add_memory_of_codes(configuration::Bytes& gpu, const TrainingConfig& config) {
  if (!config.fp8.on()) return;
  const layers::StageCase stage = stage_case(config, 0);
  const layers::GptConfig shape = shape_of_rank(config);
  const layers::Fp8BlockMemory block = layers::fp8_memory(shape, stage);
  std::size_t most = 0;
  for (const layers::Fp8LinearMemory* one : {&block.qkv, &block.projection, &block.fc1, &block.fc2})
    most = std::max({most, one->forward, one->backward_input, one->backward_weights});
  gpu.buffers += static_cast<double>(most + layers::fp8_state(shape, stage));
}

// The warm-up of a 1-bit optimizer is Adam's or LAMB's step of ZeRO stage 0.
TrainingConfig before_freezing(TrainingConfig config) {
  config.optimizer.type = config.optimizer.type == "one_bit_lamb" ? "lamb" : "adamw";
  return config;
}

void add_memory(Prediction& out, const TrainingConfig& config, const Cluster& cluster,
                const Software& software, const DataParallel& dp) {
  using configuration::Counting;
  const bool megatron = software.name.starts_with("megatron") && config.zero.stage <= 1 &&
                        software.gradient_bytes == 4 &&
                        config.zero.options.offload_optimizer.device == zero::OffloadDevice::none;
  const configuration::Machine machine{.gpu_memory = cluster.gpu.memory,
                                       .cpu_memory = cluster.host_memory / cluster.gpus_per_node,
                                       .gpus_per_node = cluster.gpus_per_node};
  TrainingConfig counted = config;
  counted.batch.gradient_accumulation_steps = config.micro_batches();
  counted.pipeline.virtual_stages.reset();
  out.held =
      held(counted, asked_for(counted, megatron ? Counting::megatron : Counting::paper), machine);
  if (config.degrees.pp > 1) {  // that count is of 1F1B; take the peak of this schedule
    const pipeline::Schedule& schedule = pipeline::find_schedule(config.pipeline.schedule);
    const pipeline::Size size = size_of(config, schedule);
    const pipeline::Placement placement = schedule.placement(size);
    int peak = 0;
    for (int stage = 0; stage < size.stages; ++stage)
      peak = std::max(peak, schedule.peak(stage, size));
    const double of_1f1b = std::min(size.stages, size.micro_batches);
    const double live = static_cast<double>(peak) * size.stages / placement.parts() / of_1f1b;
    out.held.gpu.activations *= live;
    out.held.cpu.activations *= live;
    for (double* bytes : {&out.held.gpu.parameters, &out.held.gpu.gradients})
      *bytes *= placement.copies();
  }
  if (dp.declared) add_declared_memory(out.held.gpu, config, *dp.declared);
  add_memory_of_codes(out.held.gpu, config);
  out.fits = out.held.not_held.empty() && configuration::fits(out.held, machine);
  out.gpu_memory = cluster.gpu.memory;
}

}  // namespace

double Prediction::exposed_s() const {
  double seconds = 0;
  for (const GroupTime& one : groups) seconds += one.exposed_s;
  return seconds;
}

Prediction predict_step(const TrainingConfig& config, const Cluster& cluster,
                        const Software& software, Pipeline mode) {
  const machine::Degrees& degrees = config.degrees;
  if (config.model.encoder_decoder())
    throw std::invalid_argument(
        "predict requires architecture decoder or encoder, because it has no time of cross "
        "attention (got encoder-decoder)");
  if (config.model.has_experts() && degrees.tp > 1 && !config.activations.sequence_parallel)
    throw std::invalid_argument(
        fmt::format("predict requires sequence-parallel for a model with experts and tp {}, as the "
                    "training step does",
                    degrees.tp));
  const int experts = config.model.has_experts() ? config.model.moe.num_experts : 1;
  const layers::ExpertParallel groups{config.expert_parallel, config.expert_tensor()};
  if (experts % groups.ep != 0 || degrees.tp * config.shards() % groups.ranks() != 0)
    throw std::invalid_argument(
        fmt::format("expert-model-parallel-size is {}; expected a divisor of {} experts, and with "
                    "expert-tensor-parallel-size {} one of the {} ranks of tp, cp and dp",
                    groups.ep, experts, groups.etp, degrees.tp * config.shards()));
  if (config.micro_batches() < 1)
    throw std::invalid_argument(
        fmt::format("global-batch-size is {}; expected at least data-parallel size {} x "
                    "micro-batch-size {}",
                    config.batch.global_batch_size, degrees.dp, config.batch.micro_batch_size));
  if (config.model.layers % degrees.pp != 0)
    throw std::invalid_argument(
        fmt::format("pipeline-model-parallel-size is {}; expected a "
                    "divisor of {} layers",
                    degrees.pp, config.model.layers));
  check_counted(config, cluster);
  check_frozen(config);
  std::vector<StageSeconds> stages;
  for (int stage = 0; stage < degrees.pp; ++stage)  // the stages between the ends are equal
    stages.push_back(stage > 1 && stage < degrees.pp - 1 &&
                             (config.model.layers / degrees.pp) % config.model.moe_layer_freq == 0
                         ? stages.back()
                         : stage_seconds(config, cluster, software, stage));
  const Boundary between = boundary(config, cluster, software);
  const Pipelined pipeline = pipelined(config, stages, between, software, mode);
  Prediction out;
  const auto slowest = std::ranges::max_element(pipeline.busy_s) - pipeline.busy_s.begin();
  out.slowest_stage = static_cast<int>(slowest);
  const StageSeconds& stage = stages[static_cast<std::size_t>(slowest)];
  const double m = config.micro_batches();
  out.stage = stage.sum().scaled(m);
  out.recompute_s = stage.recompute.total() * m;
  const double busy = pipeline.busy_s[static_cast<std::size_t>(slowest)];
  out.bubble_s = pipeline.makespan_s - busy;
  const std::vector<Replicated> parts = replicated(config, cluster);
  const DataParallel dp = data_parallel(config, cluster, software, out.slowest_stage, stage, parts);
  // The calls of a declared step have the sum over the embedding.
  const bool tied =
      !config.model.untie_embeddings_and_output_weights && degrees.pp > 1 && !dp.declared;
  const double table = static_cast<double>(config.model.vocabulary) * config.model.hidden /
                       degrees.tp * software.gradient_bytes;
  const Spread ends = spread(cluster, 2, degrees.tp * degrees.cp * degrees.dp);
  const double embedding_s = tied ? collective_s(cluster, Operation::all_reduce, ends, table) : 0;
  const bool simulated = mode == Pipeline::simulated;  // a bound needs no bytes of layers
  out.optimizer_s = update_seconds(config, cluster, software, parts, dp);
  out.offload_s =
      offload_seconds(config, cluster, updated_elements(config, parts, dp), pipeline.makespan_s);
  out.step_s = pipeline.makespan_s + dp.exposed_s() + embedding_s + out.optimizer_s + out.offload_s;
  add_group(out, {"tp", degrees.tp, spread(cluster, degrees.tp, 1).leaves_node(),
                  simulated ? bytes_of_layers(config, "tp", out.slowest_stage) : 0, out.stage.tp,
                  out.stage.tp_hidden});
  add_group(out, {"cp", degrees.cp, spread(cluster, degrees.cp, degrees.tp).leaves_node(),
                  simulated && degrees.cp > 1 ? cp_bytes(config, out.slowest_stage) : 0,
                  out.stage.cp, out.stage.cp_hidden});
  const int experts_ranks = expert_degrees(config).ranks();
  add_group(out, {"ep", experts_ranks, spread(cluster, experts_ranks, 1).leaves_node(),
                  ep_bytes(config, out.slowest_stage), out.stage.ep, 0});
  const int of_stage = degrees.tp * degrees.cp * degrees.dp;
  if (out.stage.fp8 > 0)
    add_group(out, {"fp8", of_stage, spread(cluster, of_stage, 1).leaves_node(),
                    bytes_of_layers(config, "fp8", out.slowest_stage), out.stage.fp8, 0});
  for (const GroupTime& group : dp.groups) add_group(out, group);
  const double messages = degrees.pp > 1 ? messages_of_stage(config, out.slowest_stage) : 0;
  const double pp_exposed = busy - out.stage.total();
  add_group(out, {"pp", degrees.pp, between.on_network, messages * between.bytes,
                  degrees.pp > 1 ? std::max(0.0, pp_exposed) : 0,
                  software.p2p_overlap ? messages * between.seconds : 0});
  if (tied) add_group(out, {"embedding", 2, ends.leaves_node(), table, embedding_s, 0});
  add_flops(out, config, cluster);
  add_memory(out, config, cluster, software, dp);
  if (config.optimizer.is_one_bit() && mode == Pipeline::simulated)
    out.before_freeze_s = predict_step(before_freezing(config), cluster, software, mode).step_s;
  if (cluster.nvme_write > 0) {
    const double nodes =
        std::max(1.0, static_cast<double>(degrees.ranks()) / cluster.gpus_per_node);
    out.checkpoint_s =
        14 * configuration::parameters_of(config.model) / (nodes * cluster.nvme_write);
  }
  out.joules = cluster.gpu.watts * degrees.ranks() * out.step_s;
  out.low_s = out.high_s = out.step_s;
  return out;
}

}  // namespace suite::predict
