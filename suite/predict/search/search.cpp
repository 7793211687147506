#include "suite/predict/search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "harness/json/json.h"
#include "pipeline/schedule.h"
#include "suite/configuration/models.h"
#include "suite/predict/collective_time.h"

namespace suite::predict {
namespace {

using layers::RecomputeGranularity;

std::vector<int> divisors(int number, int most) {
  std::vector<int> out;
  for (int i = 1; i <= std::min(number, most); ++i)
    if (number % i == 0) out.push_back(i);
  return out;
}

bool tp_divides(const TrainingConfig::Model& model, int tp) {
  return model.heads % tp == 0 && model.query_groups() % tp == 0 && model.ffn() % tp == 0 &&
         model.hidden % tp == 0;
}

// Experts are divided among neighbours of a stage, and each over etp of them.
std::vector<int> degrees_of_experts(const TrainingConfig& one) {
  if (!one.model.has_experts()) return {1};
  const int etp = one.expert_tensor(), ranks = one.degrees.tp * one.shards();
  if (one.model.mixture().ffn_hidden_size % etp != 0 || ranks % etp != 0) return {};
  const int experts = one.model.moe.num_experts;
  return divisors(std::gcd(experts, ranks / etp), experts);
}

// Adds the schedules of one candidate that has everything else.
void add_schedules(TrainingConfig one, std::vector<TrainingConfig>& out) {
  one.pipeline.schedule = "1f1b";
  one.pipeline.virtual_stages.reset();
  out.push_back(one);
  const int p = one.degrees.pp;
  if (p == 1) return;
  for (const pipeline::Schedule& schedule : pipeline::schedules()) {
    if (schedule.name == "1f1b" || schedule.name == "gpipe") continue;
    one.pipeline.schedule = schedule.name;
    const int layers = one.model.layers / p;
    for (const int v : schedule.any_chunks ? divisors(layers, layers) : std::vector{1}) {
      if (schedule.any_chunks && v == 1) continue;
      one.pipeline.virtual_stages.reset();
      if (schedule.any_chunks) one.pipeline.virtual_stages = v;
      const pipeline::Size size{.stages = p,
                                .micro_batches = one.micro_batches(),
                                .chunks = schedule.any_chunks ? v : schedule.chunks};
      if (!schedule.why_not(size).empty()) continue;
      if (layers % (schedule.placement(size).parts() / p) != 0) continue;
      out.push_back(one);
    }
  }
}

// ZeRO++ sends less between hosts, for more kernels and memory. A candidate has the options that
// the configuration names, or none.
bool may_use(const zero::PlusPlusOptions& named, const TrainingConfig& one,
             const Cluster& cluster) {
  const bool any = named.has_secondary() || named.quantized_weights || named.quantized_gradients;
  return any && one.zero.stage == 3 && !one.experts_apart() &&
         one.shards() % std::max(1, named.hpz_partition_size) == 0 &&
         spread(cluster, one.shards(), one.degrees.tp).leaves_node();
}

void add_memory_options(TrainingConfig one, const Cluster& cluster,
                        std::vector<TrainingConfig>& out) {
  const zero::PlusPlusOptions named = std::exchange(one.zero.options.plus_plus, {});
  const int most_stage = one.most_shards() == 1 ? 0 : one.degrees.pp > 1 ? 1 : 3;
  for (int stage = 0; stage <= most_stage; ++stage)
    for (const auto device : {zero::OffloadDevice::none, zero::OffloadDevice::cpu})
      for (const auto recompute : {RecomputeGranularity::none, RecomputeGranularity::selective,
                                   RecomputeGranularity::full}) {
        if (device != zero::OffloadDevice::none && stage == 0) continue;
        if (recompute == RecomputeGranularity::selective && one.activations.use_flash_attn)
          continue;
        one.zero.stage = stage;
        one.zero.options.offload_optimizer.device = device;
        one.activations.recompute_granularity = recompute;
        add_schedules(one, out);
        if (!may_use(named, one, cluster)) continue;
        TrainingConfig plus_plus = one;
        plus_plus.zero.options.plus_plus = named;
        add_schedules(plus_plus, out);
      }
}

// Returns "3++" for a candidate with the options of ZeRO++.
std::string stage_text(const TrainingConfig& config) {
  const zero::PlusPlusOptions& o = config.zero.options.plus_plus;
  const bool plus_plus = o.has_secondary() || o.quantized_weights || o.quantized_gradients;
  return fmt::format("{}{}", config.zero.stage, plus_plus ? "++" : "");
}

}  // namespace

std::vector<TrainingConfig> grid(const TrainingConfig& base, const Cluster& cluster, int gpus) {
  return grid(base, cluster, gpus, cluster.gpus_per_node);
}

std::vector<TrainingConfig> grid(const TrainingConfig& base, const Cluster& cluster, int gpus,
                                 int most_tp) {
  std::vector<TrainingConfig> out;
  constexpr int most_pp = 128, most_cp = 64, shortest_part = 2048, longest_micro_batch = 16;
  for (const int tp : divisors(gpus, most_tp))
    for (const int pp : divisors(base.model.layers, most_pp))
      for (const int cp : divisors(std::max(1, base.model.sequence / shortest_part), most_cp)) {
        const int ranks = tp * pp * cp;
        if (gpus % ranks != 0 || !tp_divides(base.model, tp)) continue;
        TrainingConfig one = base;
        one.degrees = {.tp = tp, .cp = cp, .dp = gpus / ranks, .pp = pp};
        one.activations.sequence_parallel = tp > 1;
        if (one.model.tokens > 0) one.model.vocabulary = padded_vocabulary(one.model, tp);
        if (base.batch.global_batch_size % one.degrees.dp != 0) continue;
        const int per_replica = base.batch.global_batch_size / one.degrees.dp;
        for (const int ep : degrees_of_experts(one))
          for (const int micro : divisors(per_replica, longest_micro_batch)) {
            one.expert_parallel = ep;
            one.batch.micro_batch_size = micro;
            one.batch.gradient_accumulation_steps = per_replica / micro;
            add_memory_options(one, cluster, out);
          }
      }
  return out;
}

Candidates::Candidates(std::vector<TrainingConfig> all, const Cluster& cluster,
                       const Software& software, double gpu_memory)
    : all_(std::move(all)), cluster_(cluster), software_(software) {
  cluster_.gpu.memory = gpu_memory;
  std::string why_not;  // the first
  std::size_t predicted = 0;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    try {
      const Prediction bound = predict_step(all_[i], cluster_, software_, Pipeline::lower_bound);
      ++predicted;
      if (bound.fits) bounds_.push_back({bound.step_s, i, bound.held.gpu.total()});
    } catch (const std::invalid_argument& error) {  // no step takes these keys together
      if (why_not.empty()) why_not = error.what();
    }
  }
  if (predicted == 0 && !why_not.empty()) throw std::invalid_argument(why_not);
  std::ranges::sort(bounds_, {},
                    [](const Bound& one) { return std::pair(one.step_s, one.candidate); });
}

std::vector<const TrainingConfig*> Candidates::fitting() const {
  std::vector<const TrainingConfig*> out;
  for (const Bound& bound : bounds_) out.push_back(&all_[bound.candidate]);
  return out;
}

const Prediction& Candidates::simulated(std::size_t candidate) {
  auto known = simulated_.find(candidate);
  if (known == simulated_.end())
    known = simulated_.emplace(candidate, predict_step(all_[candidate], cluster_, software_)).first;
  return known->second;
}

Found Candidates::fastest(std::size_t count, const Condition& meets) {
  Found found{.best = {}, .candidates = all_.size(), .fitting = bounds_.size()};
  for (const Bound& bound : bounds_) {
    if (found.best.size() == count && bound.step_s >= found.best.back().prediction.step_s) break;
    const TrainingConfig& config = all_[bound.candidate];
    if (meets && !meets(config)) continue;
    ++found.simulated;
    Choice choice{config, simulated(bound.candidate)};
    const auto place =
        std::ranges::upper_bound(found.best, choice.prediction.step_s, {},
                                 [](const Choice& one) { return one.prediction.step_s; });
    found.best.insert(place, std::move(choice));
    if (found.best.size() > count) found.best.pop_back();
  }
  return found;
}

// In the order of memory, a candidate whose bound exceeds the fastest so far needs no simulation.
std::vector<Choice> Candidates::pareto() {
  std::vector<Bound> by_memory = bounds_;
  std::ranges::stable_sort(by_memory, {}, &Bound::memory);
  std::vector<Choice> front;
  for (const Bound& bound : by_memory) {
    const double fastest_s = front.empty() ? INFINITY : front.back().prediction.step_s;
    if (bound.step_s >= fastest_s || simulated(bound.candidate).step_s >= fastest_s) continue;
    // A slower candidate with the same memory.
    const Prediction& faster = simulated(bound.candidate);
    if (!front.empty() && front.back().prediction.held.gpu.total() == faster.held.gpu.total())
      front.pop_back();
    front.push_back({all_[bound.candidate], faster});
  }
  return front;
}

ScalingFigure pareto_figure(const std::vector<Choice>& front) {
  ScalingFigure figure{.name = "pareto",
                       .title = "Fastest step by memory",
                       .caption = "Each point is faster than all configurations that hold less.",
                       .x = {"memory of a GPU [GB]", false},
                       .y = {"time of a step [s]", false},
                       .lines = {{"fastest", {}, {}}}};
  for (const Choice& one : front) {
    figure.lines[0].x.push_back(one.prediction.held.gpu.total() / 1e9);
    figure.lines[0].y.push_back(one.prediction.step_s);
  }
  return figure;
}

std::string Choice::limit() const {
  const Prediction& p = prediction;
  std::vector<std::pair<double, std::string>> parts{
      {p.bubble_s, "pipeline bubble"},  {p.stage.memory, "memory-bound kernels"},
      {p.stage.attention, "attention"}, {p.recompute_s, "recomputation"},
      {p.optimizer_s, "optimizer"},     {p.offload_s, "offload"}};
  for (const GroupTime& one : p.groups) parts.emplace_back(one.exposed_s, one.group + " exposed");
  const auto& [seconds, what] = *std::ranges::max_element(parts);
  return fmt::format("{} {:.0f} %", what, 100 * seconds / p.step_s);
}

std::string text(const Found& found) {
  std::string out = fmt::format(
      "{} candidates, {} fit, {} simulated\n\n{:>8} {:>6} {:>7} {:>3} {:>3} {:>3} {:>3} {:>5} "
      "{:>4} "
      "{:>6} {:<10} {:<8} {:<20} {}\n",
      found.candidates, found.fitting, found.simulated, "step s", "MFU %", "GB", "tp", "cp", "ep",
      "pp", "dp", "ZeRO", "micro", "recompute", "offload", "schedule", "limited by");
  for (const Choice& one : found.best) {
    const TrainingConfig& c = one.config;
    const std::string v =
        c.pipeline.virtual_stages ? fmt::format(" x{}", *c.pipeline.virtual_stages) : std::string();
    out += fmt::format(
        "{:8.4g} {:6.1f} {:7.1f} {:3} {:3} {:3} {:3} {:5} {:>4} {:6} {:<10} {:<8} {:<20} {}\n",
        one.prediction.step_s, 100 * one.prediction.mfu, one.prediction.held.gpu.total() / 1e9,
        c.degrees.tp, c.degrees.cp, c.expert_parallel, c.degrees.pp, c.degrees.dp, stage_text(c),
        c.batch.micro_batch_size, name(c.activations.recompute_granularity),
        name(c.zero.options.offload_optimizer.device), c.pipeline.schedule + v, one.limit());
  }
  return out;
}

std::string megatron_arguments(const TrainingConfig& config) {
  const TrainingConfig::Model& model = config.model;
  std::string out = fmt::format(
      "--num-layers {}\n--hidden-size {}\n--num-attention-heads {}\n--seq-length {}\n"
      "--max-position-embeddings {}\n"
      "--tensor-model-parallel-size {}\n--pipeline-model-parallel-size {}\n"
      "--context-parallel-size {}\n--micro-batch-size {}\n--global-batch-size {}\n",
      model.layers, model.hidden, model.heads, model.sequence, model.sequence, config.degrees.tp,
      config.degrees.pp, config.degrees.cp, config.batch.micro_batch_size,
      config.batch.global_batch_size);
  if (model.has_experts()) {
    const layers::MoeConfig mixture = model.mixture();
    out += fmt::format(
        "--num-experts {}\n--moe-router-topk {}\n--moe-ffn-hidden-size {}\n"
        "--expert-model-parallel-size {}\n",
        mixture.num_experts, mixture.topk, mixture.ffn_hidden_size, config.expert_parallel);
    if (config.expert_tensor() != config.degrees.tp)
      out += fmt::format("--expert-tensor-parallel-size {}\n", config.expert_tensor());
    if (model.moe_layer_freq > 1) out += fmt::format("--moe-layer-freq {}\n", model.moe_layer_freq);
  }
  if (model.swiglu) out += "--swiglu\n";
  if (model.ffn_hidden_size > 0) out += fmt::format("--ffn-hidden-size {}\n", model.ffn());
  if (model.group_query_attention)
    out += fmt::format("--group-query-attention\n--num-query-groups {}\n", model.num_query_groups);
  if (model.normalization == layers::Normalization::rms_norm) out += "--normalization RMSNorm\n";
  if (model.rotary()) out += "--position-embedding-type rope\n";
  if (model.disable_bias_linear) out += "--disable-bias-linear\n";
  if (model.untie_embeddings_and_output_weights) out += "--untie-embeddings-and-output-weights\n";
  const auto recompute = config.activations.recompute_granularity;
  if (config.activations.sequence_parallel) out += "--sequence-parallel\n";
  if (config.activations.use_flash_attn) out += "--use-flash-attn\n";
  if (recompute != RecomputeGranularity::none)
    out += fmt::format("--recompute-granularity {}\n", name(recompute));
  if (recompute == RecomputeGranularity::full)
    out += "--recompute-method uniform\n--recompute-num-layers 1\n";
  if (config.zero.stage == 1) out += "--use-distributed-optimizer\n";
  if (config.precision.dtype == machine::Dtype::bfloat16) out += "--bf16\n";
  if (config.precision.dtype == machine::Dtype::float16) out += "--fp16\n";
  if (config.pipeline.virtual_stages)
    out += fmt::format("--num-layers-per-virtual-pipeline-stage {}\n",
                       model.layers / config.degrees.pp / *config.pipeline.virtual_stages);
  else if (config.pipeline.schedule != "1f1b")
    out += fmt::format("# Megatron-LM has no schedule {}\n", config.pipeline.schedule);
  return out;
}

std::string deepspeed_config(const TrainingConfig& config) {
  harness::Json out{{"train_batch_size", config.batch.global_batch_size},
                    {"train_micro_batch_size_per_gpu", config.batch.micro_batch_size},
                    {"gradient_accumulation_steps", config.micro_batches()},
                    {"zero_optimization", {{"stage", config.zero.stage}}}};
  if (config.precision.dtype == machine::Dtype::bfloat16) out["bf16"]["enabled"] = true;
  if (config.precision.dtype == machine::Dtype::float16) out["fp16"]["enabled"] = true;
  const auto device = config.zero.options.offload_optimizer.device;
  if (device != zero::OffloadDevice::none)
    out["zero_optimization"]["offload_optimizer"]["device"] = std::string(name(device));
  const zero::PlusPlusOptions& plus_plus = config.zero.options.plus_plus;
  if (plus_plus.has_secondary())
    out["zero_optimization"]["zero_hpz_partition_size"] = plus_plus.hpz_partition_size;
  if (plus_plus.quantized_weights) out["zero_optimization"]["zero_quantized_weights"] = true;
  if (plus_plus.quantized_gradients) out["zero_optimization"]["zero_quantized_gradients"] = true;
  return out.dump(2) + "\n";
}

}  // namespace suite::predict
