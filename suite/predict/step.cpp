#include "suite/predict/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "layers/models/gpt_cost.h"
#include "pipeline/simulate.h"
#include "suite/plan/model_shape.h"
#include "suite/predict/collective_time.h"
#include "suite/predict/kernel_time.h"
#include "suite/trainer/model_chunks.h"

namespace suite::predict {
namespace {

using layers::RecomputeGranularity;
using machine::Operation;

double width(const TrainingConfig& config) {
  return static_cast<double>(machine::size_of(config.precision.dtype));
}

layers::StageCase stage_case(const TrainingConfig& config, int stage) {
  return {.tp = config.degrees.tp,
          .stage = {.index = stage, .count = config.degrees.pp},
          .sequences = config.batch.micro_batch_size,
          .dtype = config.precision.dtype,
          .options = config.activations};
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

// Parameters of a rank, and the ranks that hold the same ones: of an expert, those with its
// replicas (layers/experts/expert_groups.h).
struct Replicated {
  double parameters;
  int ranks;
  Spread group;
  double shard() const { return parameters / ranks; }
};
std::vector<Replicated> replicated(const TrainingConfig& config, const Cluster& cluster) {
  const int d = config.shards(), e = config.expert_parallel, t = config.degrees.tp;
  const double psi =
      configuration::parameters_of_rank(config.model, config.degrees, config.expert_parallel);
  if (e == 1) return {{psi, d, spread(cluster, d, t)}};
  const layers::MoeParameters each = moe_parameters(config.model.mixture(), expert_degrees(config));
  const double experts = static_cast<double>(config.model.moe_layers()) / config.degrees.pp *
                         static_cast<double>(each.of_experts);
  return {{psi - experts, d, spread(cluster, d, t)},
          {experts, d / e, spread(cluster, d / e, t * e)}};
}
double parameters(const std::vector<Replicated>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const Replicated& one) { return sum + one.parameters; });
}
double shard(const TrainingConfig& config, const std::vector<Replicated>& parts) {
  if (config.zero.stage == 0) return parameters(parts);
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const Replicated& one) { return sum + one.shard(); });
}

// The reduction of gradients and the gathers of values over data and context parallelism, by the
// volumes of zero/cost/cost.h.
struct Reduction {
  double bytes = 0;  // sent
  double exposed_s = 0, hidden_s = 0;
};
Reduction reduction(const TrainingConfig& config, const Cluster& cluster, const Software& software,
                    const StageSeconds& stage, const std::vector<Replicated>& parts) {
  Reduction out;
  if (config.shards() == 1) return out;
  const int z = config.zero.stage, m = config.micro_batches();
  const bool one_adapter = software.one_adapter && z == 3;
  // width: bytes of a parameter.
  const auto add = [&](Operation operation, double width, double times) {
    double seconds = 0;
    for (const Replicated& one : parts) {
      const double bytes = one.parameters * width;
      out.bytes += times * sent_bytes(operation, one.ranks, bytes);
      seconds += times * collective_s(cluster, operation, one.group, bytes, one_adapter);
    }
    return seconds;
  };
  const double layers = std::max(1, config.model.layers / config.degrees.pp);
  // Hides communication beside computing, except for the last of its buckets.
  const auto hide = [&](bool hides, double seconds, double beside, double buckets) {
    const double exposed = hides ? std::max(seconds / buckets, seconds - beside) : seconds;
    out.exposed_s += exposed;
    out.hidden_s += seconds - exposed;
  };
  const double gradients = std::max(software.gradient_bytes, width(config));
  const double values = width(config);
  const bool full = config.activations.recompute_granularity == RecomputeGranularity::full;
  const double backwards = (z >= 2 ? m : 1) * stage.backward();
  const double computing = m * (stage.backward() + stage.forward.total());
  if (z == 0) {
    hide(software.reduction_overlap, add(Operation::all_reduce, gradients, 1), backwards, layers);
    return out;
  }
  const double reductions = z >= 2 ? m : 1;
  const double reduced = add(Operation::reduce_scatter, gradients, reductions);
  if (z < 3) {
    hide(software.reduction_overlap, reduced, backwards, layers * reductions);
    const int d = config.shards();
    const double published = config.zero.options.all_gathers_values
                                 ? add(Operation::all_gather, values, 1)
                                 : add(Operation::broadcast, values / d, d);
    hide(software.dp_overlap, published, stage.forward.total(), layers);
    return out;
  }
  const double gathers = m * (full ? software.gathers : 2);
  const double gathered = add(Operation::all_gather, values, gathers);
  if (software.reduction_overlap) {  // both share the links
    hide(true, gathered + reduced, computing, layers * m);
  } else {
    hide(software.dp_overlap, gathered, computing, layers * m);
    hide(false, reduced, 0, 1);
  }
  return out;
}

double offload_seconds(const TrainingConfig& config, const Cluster& cluster, double shard) {
  const zero::StepOptions& options = config.zero.options;
  const auto node = static_cast<double>(cluster.gpus_per_node);
  const double E = width(config);
  double seconds = 0;
  const bool host = options.offload_optimizer.device != zero::OffloadDevice::none;
  const bool file = options.offload_optimizer.device == zero::OffloadDevice::nvme;
  if (host) {
    seconds += 2 * E * shard / cluster.pcie;
    seconds += shard * (28 + E) * node / cluster.host_bandwidth;  // CPU Adam
  }
  if (file && cluster.nvme_read > 0)
    seconds += 12 * shard * node * (1 / cluster.nvme_read + 1 / cluster.nvme_write);
  if (options.offload_param.device != zero::OffloadDevice::none)
    seconds += 2.0 * config.micro_batches() * E * shard / cluster.pcie;
  return seconds;
}

void add_group(Prediction& out, GroupTime group) {
  if (group.ranks > 1) out.groups.push_back(std::move(group));
}

double tp_bytes(const TrainingConfig& config, int stage) {
  const layers::StageCase one = stage_case(config, stage);
  layers::GptConfig shape = config.model;
  shape.sequence /= config.degrees.cp;
  double bytes = 0;
  for (const auto& calls :
       {layers::forward_calls(shape, one), layers::backward_input_calls(shape, one),
        layers::backward_weights_calls(shape, one)})
    bytes += sent_bytes(calls_over("tp", calls));
  return bytes * config.micro_batches();
}

double cp_bytes(const TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  const double part = 2.0 * config.batch.micro_batch_size * model.sequence / config.degrees.cp *
                      model.query_groups() * model.head() / config.degrees.tp * width(config);
  const bool full = config.activations.recompute_granularity == RecomputeGranularity::full;
  return (full ? 4 : 3) * (config.degrees.cp - 1) * part * model.layers / config.degrees.pp *
         config.micro_batches();
}

// The messages of the experts' layers on the slowest stage.
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

void add_memory(Prediction& out, const TrainingConfig& config, const Cluster& cluster,
                const Software& software) {
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
  const configuration::Holding holding =
      asked_for(counted, megatron ? Counting::megatron : Counting::paper);
  out.held = held(counted, holding, machine);
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
  if (experts % config.expert_parallel != 0 || config.shards() % config.expert_parallel != 0)
    throw std::invalid_argument(fmt::format(
        "expert-model-parallel-size is {}; expected a divisor of {} experts and of dp {}",
        config.expert_parallel, experts, config.shards()));
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
  const Reduction dp = reduction(config, cluster, software, stage, parts);
  const bool tied = !config.model.untie_embeddings_and_output_weights && degrees.pp > 1;
  const double table = static_cast<double>(config.model.vocabulary) * config.model.hidden /
                       degrees.tp * software.gradient_bytes;
  const Spread ends = spread(cluster, 2, degrees.tp * degrees.cp * degrees.dp);
  const double embedding_s = tied ? collective_s(cluster, Operation::all_reduce, ends, table) : 0;
  const bool host = config.zero.options.offload_optimizer.device != zero::OffloadDevice::none;
  if (!host)
    out.optimizer_s = streaming_s(cluster.gpu, shard(config, parts) * software.optimizer_bytes, 10);
  out.offload_s = offload_seconds(config, cluster, shard(config, parts));
  out.step_s = pipeline.makespan_s + dp.exposed_s + embedding_s + out.optimizer_s + out.offload_s;
  add_group(out, {"tp", degrees.tp, spread(cluster, degrees.tp, 1).leaves_node(),
                  tp_bytes(config, out.slowest_stage), out.stage.tp, out.stage.tp_hidden});
  add_group(out, {"cp", degrees.cp, spread(cluster, degrees.cp, degrees.tp).leaves_node(),
                  cp_bytes(config), out.stage.cp, out.stage.cp_hidden});
  const int experts_ranks = expert_degrees(config).ranks();
  add_group(out, {"ep", experts_ranks, spread(cluster, experts_ranks, 1).leaves_node(),
                  ep_bytes(config, out.slowest_stage), out.stage.ep, 0});
  add_group(out, {"dp", config.shards(), spread(cluster, config.shards(), degrees.tp).leaves_node(),
                  dp.bytes, dp.exposed_s, dp.hidden_s});
  const double messages = 2 * m * (degrees.pp > 1 ? 1 : 0);
  const double pp_exposed = busy - out.stage.total();
  add_group(out, {"pp", degrees.pp, between.on_network, messages * between.bytes,
                  degrees.pp > 1 ? std::max(0.0, pp_exposed) : 0,
                  software.p2p_overlap ? messages * between.seconds : 0});
  if (tied) add_group(out, {"embedding", 2, ends.leaves_node(), table, embedding_s, 0});
  add_flops(out, config, cluster);
  add_memory(out, config, cluster, software);
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
