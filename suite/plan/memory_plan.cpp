#include "suite/plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "suite/configuration/models.h"
#include "suite/plan/model_shape.h"

namespace suite::configuration {
namespace {

using layers::RecomputeGranularity;

bool is_full(const TrainingConfig& training) {
  return training.activations.recompute_granularity == RecomputeGranularity::full;
}

// Returns the part of all scores that is in present blocks of a sparse layout.
double share_of_scores(const Model& model) {
  if (!model.sparse.on()) return 1;
  const auto [pattern, block] = model.sparse_options();
  const int heads = pattern.different_layout_per_head ? model.heads : 1;
  return layers::sparse_layout(pattern, heads, model.sequence / block).density();
}

double as_double(std::int64_t value) { return static_cast<double>(value); }

// Bytes per element.
struct Widths {
  double value, gradient, optimizer, communicated;
};

Widths widths(const TrainingConfig& training) {
  const bool narrow = training.precision.dtype != machine::Dtype::float32;
  const TrainingConfig::Optimizer& optimizer = training.optimizer;
  const bool two = optimizer.type == "adamw" || optimizer.type == "lamb" || optimizer.is_one_bit();
  const bool none =
      optimizer.type == "adafactor" || (optimizer.type == "sgd" && optimizer.momentum == 0);
  const double moments = optimizer.type == "one_bit_lamb" ? 12
                         : optimizer.is_8bit()            ? 2 + 8.0 / machine::moment_block
                         : two                            ? 8
                         : none                           ? 0
                                                          : 4;
  const std::string& sent = training.zero.communication_data_type;
  const double value = narrow ? 2 : 4;
  return {value, value, (narrow ? 4 : 0) + moments,
          sent.empty()     ? value
          : sent == "fp32" ? 4.0
                           : 2.0};
}

// Returns "2Ψ/d" for the text of an assumption.
std::string share(double width, bool cut) { return fmt::format("{}Ψ{}", width, cut ? "/d" : ""); }

// Returns the bytes of a bucket, at most those of its possible content.
double bucket(std::int64_t elements, double most, double width) {
  return std::min(as_double(elements), most) * width;
}

// Returns the bytes of DeepSpeed's buffers with the configuration's sizes.
double gpu_buffers(const TrainingConfig& training, int stage, double psi,
                   bool parameters_offloaded) {
  const TrainingConfig::Zero& zero = training.zero;
  const Widths w = widths(training);
  const double reduce = bucket(zero.reduce_bucket_size, psi, w.communicated);
  if (stage == 0) return reduce;
  double bytes = reduce * (zero.overlap_comm.value_or(stage == 3) ? 2 : 1);
  if (stage < 3) return bytes + bucket(zero.options.allgather_bucket_size, psi, w.value);
  const double kept = parameters_offloaded ? 0 : psi / as_double(training.shards());
  bytes += std::min(as_double(zero.options.stage3_max_live_parameters), psi - kept) * w.value;
  return bytes + bucket(zero.options.stage3_prefetch_bucket_size, psi, w.value);
}

// An expert's states are sharded over its holders.
double shard_of_rank(const TrainingConfig& training) {
  const double experts = expert_parameters_of_rank(training);
  return (parameters_of_rank(training) - experts) / as_double(training.shards()) +
         experts / as_double(training.expert_shards());
}

// Returns the model states, each whole or sharded, and the activations. All are on the GPU.
Held on_gpu(const TrainingConfig& training, int stage, const Widths& w) {
  const double psi = parameters_of_rank(training);
  const double shard = shard_of_rank(training);
  Held held;
  held.gpu = {.parameters = w.value * (stage >= 3 ? shard : psi),
              .gradients = w.gradient * (stage >= 2 ? shard : psi),
              .optimizer = w.optimizer * (stage >= 1 ? shard : psi),
              .activations = activation_bytes(training)};
  held.assumption = fmt::format("{} + {} + {}", share(w.value, stage >= 3),
                                share(w.gradient, stage >= 2), share(w.optimizer, stage >= 1));
  return held;
}

Held paper(const TrainingConfig& training, const Holding& holding) {
  const double psi = parameters_of_rank(training);
  const double shard = shard_of_rank(training);
  const Widths w = widths(training);
  const int stage = holding.stage;
  const TrainingConfig::Zero& zero = training.zero;
  Held held = on_gpu(training, stage, w);
  if (stage == 3) held.assumption += " + live parameters";
  const zero::PlusPlusOptions& plus_plus = zero.options.plus_plus;
  if (stage == 3 && plus_plus.has_secondary()) {
    held.gpu.parameters += w.value * psi / plus_plus.hpz_partition_size;
    held.assumption += fmt::format(" + {}Ψ/{} (hpZ)", w.value, plus_plus.hpz_partition_size);
  }
  if (holding.optimizer != "none") {
    const bool cpu = holding.optimizer == "cpu";
    // Stage 1 sums its gradients on the GPU and copies the shard that the update reads. In stages 2
    // and 3, gradients leave the GPU when their bucket is summed.
    if (stage != 1) held.gpu.gradients = 0;
    held.cpu.gradients = w.gradient * shard;
    // In stage 3 a part of the states can stay.
    const double states = held.gpu.optimizer;
    const double away = stage == 3 && cpu ? zero.options.offload_optimizer.cpu.ratio : 1;
    (cpu ? held.cpu : held.nvme).optimizer = states * away;
    held.gpu.optimizer = states * (1 - away);
    if (!cpu)
      held.cpu.buffers += as_double(zero.options.offload_optimizer.nvme.buffer_count) *
                          bucket(zero.options.offload_optimizer.nvme.sub_group_size, shard, 4);
    held.assumption += cpu ? "; shards of gradients and optimizer on the CPU"
                           : "; shard of gradients on the CPU, of optimizer on NVMe";
  }
  if (holding.parameters != "none") {
    const double values = std::exchange(held.gpu.parameters, 0);
    if (holding.parameters == "cpu") {
      held.cpu.parameters = values;
      held.assumption += "; values on the CPU";
    } else {
      held.nvme.parameters = values;
      held.cpu.parameters = bucket(zero.options.offload_param.max_in_cpu, shard, w.value);
      held.cpu.buffers += as_double(zero.options.offload_param.buffer_count) *
                          bucket(zero.options.offload_param.buffer_size, psi, w.value);
      held.assumption += "; values on NVMe";
    }
  }
  held.gpu.buffers = gpu_buffers(training, stage, psi, holding.parameters != "none");
  // DeepSpeed keeps the errors of workers and server on the GPU.
  if (stage == 0 && training.optimizer.is_one_bit() && training.shards() > 1) {
    held.gpu.buffers += 4 * psi * (1 + 1 / as_double(training.shards()));
    held.assumption += " + 4Ψ + 4Ψ/d (errors of codes)";
  }
  if (training.activations.cpu_checkpointing && is_full(training))
    held.cpu.activations = std::exchange(held.gpu.activations, 0);
  return held;
}

// Megatron-LM's distributed optimizer has float32 gradients under bfloat16 by default. fp16 has 4
// bytes more for a copy of the summed gradients in the optimizer.
Held megatron(const TrainingConfig& training, const Holding& holding) {
  Widths w = widths(training);
  const bool fp16 = training.precision.dtype == machine::Dtype::float16;
  const std::string& sums = training.zero.grad_accum_dtype;
  w.gradient = sums.empty() ? (fp16 ? 2 : 4) : sums == "fp32" ? 4 : 2;
  if (fp16 && w.gradient == 2) w.optimizer += 4;
  Held held = on_gpu(training, holding.stage, w);
  held.assumption +=
      fmt::format("{}; buffers not counted", holding.stage == 1   ? " (distributed optimizer)"
                                             : holding.stage >= 2 ? " (Megatron-FSDP)"
                                                                  : "");
  return held;
}

// As estimate_zero2_model_states_mem_needs and the function for ZeRO-3. CPU bytes are per rank.
Held deepspeed(const TrainingConfig& training, const Holding& holding, const Machine& machine) {
  const double psi = parameters_of_rank(training.model, training.degrees);
  const double d = as_double(training.shards());
  const double per_node =
      as_double(std::min<std::int64_t>(machine.gpus_per_node, training.shards()));
  const double nodes = std::max(1.0, d / per_node), spare = 1.5;
  const double live = 4 * largest_part(training.model) / as_double(training.degrees.tp);
  Held held;
  const bool offloaded = holding.optimizer != "none";
  std::string formula;
  if (holding.stage == 2) {
    held.gpu.parameters = 2 * psi;
    if (!offloaded) held.gpu.optimizer = 18 * psi / d;
    held.cpu.optimizer =
        offloaded ? psi * std::max(4 * d, 16.0) * spare / per_node : psi * 4 * spare;
    formula = offloaded ? "2Ψ; host Ψ max(4d, 16) 1.5" : "2Ψ + 18Ψ/d; host 4Ψ 1.5 at the start";
  } else {
    held.gpu.buffers = live;
    const bool values_too = holding.parameters != "none";
    if (!offloaded) {
      held.gpu.parameters = 2 * psi / d;
      held.gpu.optimizer = 16 * psi / d;
      held.cpu.buffers = live * spare;
      formula = "4 largest + 18Ψ/d";
    } else {
      if (!values_too) held.gpu.parameters = 2 * psi / d;
      held.cpu.optimizer = (values_too ? 18 : 16) * psi / nodes * spare / per_node;
      formula = values_too ? "4 largest; host 18Ψ 1.5" : "4 largest + 2Ψ/d; host 16Ψ 1.5";
    }
  }
  held.assumption = formula + "; model states only, optimizer includes gradients";
  return held;
}

// Returns the micro-batches on the first stage. Interleaving has 1 + (p-1)/(pv) times as many
// (arXiv:2205.05198, section 4.2.3).
double micro_batches_in_flight(const TrainingConfig& training) {
  const double p = as_double(training.degrees.pp);
  const double v = as_double(training.pipeline.virtual_stages.value_or(1));
  return std::min(v > 1 ? p + (p - 1) / v : p,
                  as_double(training.batch.gradient_accumulation_steps));
}

}  // namespace

std::string_view name(Counting counting) {
  constexpr std::string_view names[] = {"paper", "Megatron-LM", "DeepSpeed's estimator", "ours"};
  return names[static_cast<std::size_t>(counting)];
}

std::vector<Holding> holdings() {
  using enum Counting;
  std::vector<Holding> all{{paper, 0}};
  for (const int stage : {1, 2, 3})
    for (const char* optimizer : {"none", "cpu", "nvme"}) all.push_back({paper, stage, optimizer});
  all.insert(all.end(), {{paper, 3, "cpu", "cpu"}, {paper, 3, "nvme", "nvme"}});
  for (const int stage : {0, 1, 2, 3}) all.push_back({megatron, stage});
  for (const int stage : {2, 3})
    all.insert(all.end(), {{deepspeed, stage}, {deepspeed, stage, "cpu"}});
  all.push_back({deepspeed, 3, "cpu", "cpu"});
  for (const int stage : {0, 1, 2, 3}) all.push_back({ours, stage});
  return all;
}

Holding asked_for(const TrainingConfig& training, Counting counting) {
  const zero::StepOptions& options = training.zero.options;
  return {counting, training.zero.stage, std::string(name(options.offload_optimizer.device)),
          std::string(name(options.offload_param.device))};
}

std::string text(const Holding& holding) {
  std::string result = fmt::format("stage {}", holding.stage);
  if (holding.optimizer != "none") result += ", optimizer " + holding.optimizer;
  if (holding.parameters != "none") result += ", parameters " + holding.parameters;
  return result;
}

Held held(const TrainingConfig& training, const Holding& holding, const Machine& machine) {
  if (training.over_grid() && holding.counting != Counting::ours) {
    Held none;
    none.not_held = "its formula has tensor-parallel-mode 1d";
    return none;
  }
  switch (holding.counting) {
    case Counting::paper:
      return paper(training, holding);
    case Counting::megatron:
      return megatron(training, holding);
    case Counting::deepspeed:
      return deepspeed(training, holding, machine);
    case Counting::ours:
      return ours(training, holding);
  }
  return {};
}

bool fits(const Held& held, const Machine& machine) {
  return held.not_held.empty() && held.gpu.total() <= machine.gpu_memory &&
         (!machine.cpu_memory || held.cpu.total() <= *machine.cpu_memory);
}

Largest largest(const TrainingConfig& training, const Holding& holding, const Machine& machine) {
  const bool shaped = training.model.has_shape();
  TrainingConfig grown = training;
  const std::int64_t unit = shaped ? training.degrees.pp : 1'000'000;
  const auto grow = [&](std::int64_t steps) {
    if (shaped)
      grown.model.layers = static_cast<int>(steps * unit);
    else
      grown.model.parameters = steps * unit;
    return fits(held(grown, holding, machine), machine);
  };
  // Doubles the size, then bisects, because a larger model never needs less memory. `ours` is slow
  // because it declares a model layer by layer.
  const std::int64_t layers = holding.counting == Counting::ours ? 4'096 : 65'536;
  const std::int64_t most = shaped ? std::max<std::int64_t>(1, layers / unit) : 1'000'000'000;
  std::int64_t fitting = 0, beyond = 1;
  while (grow(beyond)) {
    fitting = beyond;
    if (beyond == most) break;
    beyond = std::min(2 * beyond, most);
  }
  while (beyond - fitting > 1) {
    const std::int64_t middle = (fitting + beyond) / 2;
    (grow(middle) ? fitting : beyond) = middle;
  }
  grow(fitting);
  if (fitting == 0) return {};
  return {shaped ? grown.model.layers : 0, parameters_of(grown.model), fitting == most};
}

double activation_bytes(const TrainingConfig& training) {
  const Model& m = training.model;
  if (!m.has_shape()) return 0;
  const layers::ActivationOptions& options = training.activations;
  const machine::Degrees& degrees = training.degrees;
  const double s = as_double(m.sequence) / as_double(degrees.cp);
  const double b = as_double(training.batch.micro_batch_size);
  const double h = as_double(m.hidden), a = as_double(m.heads);
  const double t = as_double(degrees.tp), p = as_double(degrees.pp);
  const double sbh = s * b * h;
  const bool cut = options.sequence_parallel && degrees.tp > 1;
  double layer = 0;
  if (is_full(training)) {
    layer = 2 * sbh / (cut || options.distribute_saved_activations ? t : 1);
  } else {
    const bool probabilities =
        options.recompute_granularity == RecomputeGranularity::none && !options.use_flash_attn;
    // Each rank of a context holds the scores of its queries with the whole sequence.
    const double scores =
        probabilities ? 5 * a * as_double(m.sequence) / h * share_of_scores(m) : 0;
    layer = sbh * ((cut ? 10 / t : 10) + (24 + scores) / t);
  }
  const double in_flight = micro_batches_in_flight(training);
  double bytes = layer * as_double(m.layers) / p * in_flight;
  const double ends = cut ? t : 1;
  bytes += (8 * s * b + sbh / ends) * in_flight;  // tokens, and the dropout after the embedding
  if (degrees.pp == 1)
    bytes += 4 * sbh / ends + 4 * s * b * as_double(padded_vocabulary(m, degrees.tp)) / t;
  return training.precision.dtype == machine::Dtype::float32 ? 2 * bytes : bytes;
}

std::string activation_formula(const TrainingConfig& training) {
  if (!training.model.has_shape()) return "not counted: only a number of parameters is known";
  const layers::ActivationOptions& options = training.activations;
  const bool cut = training.activations.sequence_parallel && training.degrees.tp > 1;
  const char* formula = "";
  if (is_full(training))
    formula = cut || options.distribute_saved_activations ? "2sbh/t" : "2sbh";
  else if (options.recompute_granularity == RecomputeGranularity::selective ||
           options.use_flash_attn)
    formula = cut ? "34sbh/t" : "sbh(10 + 24/t)";
  else
    formula = cut ? "(sbh/t)(34 + 5as/h)" : "sbh(10 + 24/t + 5as/(ht))";
  const Model& model = training.model;
  const bool other = model.swiglu || model.ffn() != 4 * model.hidden ||
                     model.query_groups() != model.heads || model.has_experts();
  const std::string sparse =
      model.sparse.on() && std::string_view(formula).find("5as") != std::string_view::npos
          ? fmt::format("; of the scores the {:.3g} of present blocks", share_of_scores(model))
          : "";
  return fmt::format(
      "{} per layer (arXiv:2205.05198, table 2{}{}{}), {} layers x {} micro-batches in flight, and "
      "the ends",
      formula, training.precision.dtype == machine::Dtype::float32 ? "; twice, for float32" : "",
      other ? "; computed as for a GPT" : "", sparse, model.layers / training.degrees.pp,
      micro_batches_in_flight(training));
}

}  // namespace suite::configuration
