#include "suite/predict/scaling_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "harness/json/json.h"
#include "suite/configuration/models.h"
#include "suite/plan/memory_plan.h"
#include "suite/predict/collective_time.h"

namespace suite::predict {
namespace {

using Line = ScalingFigure::Line;
using machine::Operation;

std::vector<double> powers(double first, double last) {
  std::vector<double> out;
  for (double value = first; value <= last; value *= 2) out.push_back(value);
  return out;
}

Line line(std::string name, const std::vector<double>& x,
          const std::function<double(double)>& y_of) {
  Line out{std::move(name), x, {}};
  for (const double value : x) out.y.push_back(y_of(value));
  return out;
}

TrainingConfig gpt3(int tp, int pp, int dp, int batch) {
  TrainingConfig config;
  config.model = named_model("gpt3_175b");
  config.model.vocabulary = padded_vocabulary(config.model, tp);
  config.precision.dtype = machine::Dtype::bfloat16;
  config.degrees = {.tp = tp, .dp = dp, .pp = pp};
  config.batch = {1, batch, 0};
  config.zero.stage = dp > 1 ? 1 : 0;
  config.activations.sequence_parallel = tp > 1;
  config.activations.use_flash_attn = true;
  return config;
}

// GPT 1.7B of arXiv:2104.04473, table 1: data parallelism only.
TrainingConfig gpt_1_7b(int dp, int batch) {
  TrainingConfig config;
  config.model = TrainingConfig::Model(
      {.layers = 24, .hidden = 2304, .heads = 24, .vocabulary = 51200, .sequence = 2048});
  config.model.tokens = config.model.vocabulary;
  config.precision.dtype = machine::Dtype::bfloat16;
  config.degrees = {.dp = dp};
  config.batch = {2, batch, 0};
  config.activations.use_flash_attn = true;
  return config;
}

std::vector<ScalingFigure> of_gpus(const Cluster& cluster, const Software& software) {
  const std::vector<double> gpus = powers(64, 16384);
  const auto tokens_s = [&](double count, int batch) {
    return predict_step(gpt3(8, 8, static_cast<int>(count) / 64, batch), cluster, software)
        .tokens_per_s();
  };
  // The batch of weak scaling is 24 micro-batches for each replica; both meet at 64 replicas.
  const auto weak = [&](double count) {
    return tokens_s(count, 24 * static_cast<int>(count) / 64);
  };
  const auto strong = [&](double count) { return tokens_s(count, 1536); };
  const auto linear = [](double first) {
    return [first](double count) { return first * count / 64; };
  };
  const ScalingFigure::Axis x{"GPUs", true}, y{"tokens/s", true};
  return {{"strong_scaling",
           "Strong scaling of GPT-3 175B",
           "The same global batch of 1536 sequences on more GPUs, TP 8 x PP 8.",
           x,
           y,
           {line("predicted", gpus, strong), line("linear", gpus, linear(strong(64)))}},
          {"weak_scaling",
           "Weak scaling of GPT-3 175B",
           "24 sequences for each replica of TP 8 x PP 8.",
           x,
           y,
           {line("predicted", gpus, weak), line("linear", gpus, linear(weak(64)))}}};
}

// Returns the figure of arXiv:1910.02054, by the planner.
std::vector<ScalingFigure> of_zero() {
  std::vector<ScalingFigure> out;
  for (const int stage : {1, 2, 3}) {
    ScalingFigure figure{
        fmt::format("zero_memory_stage_{}", stage),
        fmt::format("Model states of a GPU, ZeRO stage {}", stage),
        "Parameters, gradients and optimizer states, 2 + 2 + 12 bytes a parameter.",
        {"GPUs of data parallelism", true},
        {"GB", true},
        {}};
    for (const double billions : {7.5, 13.0, 65.0, 175.0, 530.0, 1000.0})
      figure.lines.push_back(
          line(fmt::format("{:g}e9 parameters", billions), powers(1, 1024), [&](double dp) {
            TrainingConfig config;
            config.model.parameters = static_cast<std::int64_t>(billions * 1e9);
            config.precision.dtype = machine::Dtype::bfloat16;
            config.degrees.dp = static_cast<int>(dp);
            config.batch = {1, config.degrees.dp, 1};
            const configuration::Bytes gpu =
                configuration::held(config, {configuration::Counting::paper, stage}, {}).gpu;
            return (gpu.parameters + gpu.gradients + gpu.optimizer) / 1e9;
          }));
    out.push_back(std::move(figure));
  }
  return out;
}

ScalingFigure of_data_parallelism(const Cluster& cluster) {
  const auto exposed = [&](const char* software, int batch_of_replica) {
    return line(fmt::format("{}, {} sequences a GPU", software, batch_of_replica), powers(1, 256),
                [=, &cluster](double dp) {
                  const int count = static_cast<int>(dp);
                  const Prediction one = predict_step(gpt_1_7b(count, batch_of_replica * count),
                                                      cluster, find_software(software));
                  return 100 * one.exposed_s() / one.step_s;
                });
  };
  return {"dp_overhead",
          "Overhead of data parallelism, GPT 1.7B",
          "The part of a step that waits for the reduction of gradients.",
          {"GPUs", true},
          {"% of the step", false},
          {exposed("megatron_core", 2), exposed("megatron_2021", 2), exposed("megatron_2021", 16)}};
}

// Degrees beyond a node leave it, so the time of TP jumps there.
std::vector<ScalingFigure> of_degrees(const Cluster& cluster, const Software& software) {
  const auto group = [](const Prediction& step, std::string_view name, auto value) {
    const auto found = std::ranges::find(step.groups, name, &GroupTime::group);
    return found == step.groups.end() ? 0.0 : value(*found);
  };
  const auto tp = [&](double t) {
    return predict_step(gpt3(static_cast<int>(t), 1, 1, 8), cluster, software);
  };
  const auto pp = [&](double p) {
    return predict_step(gpt3(8, static_cast<int>(p), 1, 64), cluster, software);
  };
  const std::vector<double> tps = powers(1, 32), pps = powers(1, 32);
  const auto ms = [](const GroupTime& one) { return 1e3 * (one.exposed_s + one.hidden_s); };
  const auto gigabytes = [](const GroupTime& one) { return one.bytes / 1e9; };
  const auto bubble = [&](double p) {
    const Prediction step = pp(p);
    return 100 * step.bubble_s / (step.step_s - step.bubble_s);
  };
  return {
      {"tp_communication",
       "Communication of tensor parallelism, GPT-3 175B",
       "Collectives of a step of 8 sequences; exposed and hidden together.",
       {"TP", true},
       {"ms", false},
       {line("time", tps, [&](double t) { return group(tp(t), "tp", ms); })}},
      {"tp_bytes",
       "Volume of tensor parallelism, GPT-3 175B",
       "Bytes that a rank sends in a step of 8 sequences.",
       {"TP", true},
       {"GB", false},
       {line("sent", tps, [&](double t) { return group(tp(t), "tp", gigabytes); })}},
      {"pp_communication",
       "Messages of a pipeline, GPT-3 175B with TP 8",
       "Messages of the slowest stage in a step of 64 micro-batches.",
       {"PP", true},
       {"ms", false},
       {line("time", pps, [&](double p) { return group(pp(p), "pp", ms); })}},
      {"pp_bubble",
       "Bubble of 1F1B, GPT-3 175B with TP 8",
       "Idle time over the work of the slowest stage, 64 micro-batches; (p - 1) / m is for equal "
       "stages.",
       {"PP", true},
       {"% of the work", false},
       {line("simulated", pps, bubble),
        line("(p - 1) / m", pps, [](double p) { return 100 * (p - 1) / 64; })}},
  };
}

// A star: one rank receives all buffers, adds them, and sends the sum to each.
ScalingFigure of_savings(const Cluster& cluster) {
  const double bytes = 1 << 30;
  const std::vector<double> gpus = powers(2, 256);
  const auto star = [&](double count) {
    const Spread group = spread(cluster, static_cast<int>(count), 1);
    const Connection link = connection(cluster, group, true);
    return 2 * (link.latency_s + (count - 1) * bytes / link.rate);
  };
  const auto over_star = [&](const auto& seconds) {
    return
        [&star, seconds](double count) { return seconds(static_cast<int>(count)) / star(count); };
  };
  // One ring over all ranks leaves each node through one adapter.
  const auto ring = [&](int count) {
    const Connection link = connection(cluster, spread(cluster, count, 1), true);
    return charge(Operation::all_reduce, "ring", count).seconds(link, bytes);
  };
  // Reduce-scatter in the node, a ring of each GPU's share over the nodes, all-gather.
  const auto levels = [&](int count) {
    const int in_node = std::min(count, cluster.gpus_per_node);
    const Spread near = spread(cluster, in_node, 1);
    const double inside = collective_s(cluster, Operation::reduce_scatter, near, bytes) +
                          collective_s(cluster, Operation::all_gather, near, bytes);
    if (count == in_node) return inside;
    return inside + collective_s(cluster, Operation::all_reduce,
                                 spread(cluster, count / in_node, cluster.gpus_per_node),
                                 bytes / in_node);
  };
  // Backward of a model with these gradients in float32, 4 operations a parameter and token. The
  // last bucket of 25 MB begins when backward ends.
  const double backward_s =
      4 * (bytes / 4) * 4096 /
      (cluster.gpu.peak(machine::Dtype::bfloat16) * cluster.gpu.gemm_fraction);
  const auto overlapped = [&](int count) {
    const double seconds = levels(count);
    return std::max(seconds - backward_s, seconds * 25e6 / bytes);
  };
  const auto compressed = [&](int count) {  // 8 bits, all-to-all and all-gather
    const Connection link = connection(cluster, spread(cluster, count, 1), true);
    return (charge(Operation::all_to_all, "direct", count).seconds(link, bytes / 4) +
            charge(Operation::all_gather, "ring", count).seconds(link, bytes / 4));
  };
  const auto top_k = [&](int count) {  // a tenth, with int32 indices, gathered by all
    const Connection link = connection(cluster, spread(cluster, count, 1), true);
    return charge(Operation::all_gather, "ring", count).seconds(link, 0.1 * 2 * bytes * count);
  };
  return {
      "savings",
      "An all-reduce of 1 GiB over that of a parameter server",
      "A star whose root receives all buffers is 1. Compression as in 1-bit Adam's collectives, "
      "with 8 bits; top-k sends a tenth with indices to all. Overlapped: what backward on 4096 "
      "tokens in bfloat16 does not hide.",
      {"GPUs", true},
      {"time / star", true},
      {line("ring", gpus, over_star(ring)), line("by topology", gpus, over_star(levels)),
       line("by topology, overlapped", gpus, over_star(overlapped)),
       line("ring, 8 bits", gpus, over_star(compressed)),
       line("top-k 0.1", gpus, over_star(top_k))}};
}

// The model of an article: t = 0.1 s a step, c = 0.01 s for each further GPU.
ScalingFigure of_throughput(const Cluster& cluster, const Software& software) {
  const std::vector<double> gpus = powers(1, 256);
  const auto step = [&](int count) {
    return predict_step(gpt_1_7b(count, 2 * count), cluster, software).step_s;
  };
  const double alone = step(1);
  return {
      "throughput_model",
      "Models of throughput",
      "Steps of one GPU in the same time, with communication of a tenth of a step for each further "
      "GPU, as a ring, and predicted for GPT 1.7B.",
      {"GPUs", true},
      {"times one GPU", true},
      {line("N / (t + c (N - 1))", gpus, [](double n) { return n / (1 + 0.1 * (n - 1)); }),
       line("ring", gpus,
            [](double n) {
              return n / (1 + 0.1 * sent_bytes(Operation::all_reduce, static_cast<int>(n), 1.0));
            }),
       line("predicted", gpus, [&](double n) { return n * alone / step(static_cast<int>(n)); }),
       line("linear", gpus, [](double n) { return n; })}};
}

}  // namespace

std::vector<ScalingFigure> scaling_figures(const Cluster& cluster, const Software& software) {
  std::vector<ScalingFigure> all = of_gpus(cluster, software);
  const auto add = [&all](std::vector<ScalingFigure> more) {
    for (ScalingFigure& one : more) all.push_back(std::move(one));
  };
  add(of_zero());
  add({of_data_parallelism(cluster)});
  add(of_degrees(cluster, software));
  add({of_savings(cluster), of_throughput(cluster, software)});
  return all;
}

std::string json(const std::vector<ScalingFigure>& figures, const Cluster& cluster) {
  harness::Json out{{"schema", "shardmark-predict/1"}, {"cluster", cluster.name}};
  for (const ScalingFigure& figure : figures) {
    harness::Json one{{"name", figure.name},
                      {"title", figure.title},
                      {"caption", fmt::format("{} Cluster {}.", figure.caption, cluster.name)}};
    for (const auto& [key, axis] : {std::pair{"x", &figure.x}, {"y", &figure.y}})
      one[key] = {{"label", axis->label}, {"logarithmic", axis->logarithmic}};
    for (const Line& line : figure.lines)
      one["lines"].push_back({{"name", line.name}, {"x", line.x}, {"y", line.y}});
    out["figures"].push_back(std::move(one));
  }
  return out.dump(1) + "\n";
}

}  // namespace suite::predict
