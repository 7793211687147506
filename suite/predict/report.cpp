#include "suite/predict/report.h"

#include <fmt/format.h>

#include "harness/json/json.h"
#include "harness/record/summary.h"
#include "machine/device/dtype.h"

namespace suite::predict {
namespace {

// Returns the rows of a step: what, seconds. They add up to the step.
std::vector<std::pair<std::string, double>> rows_of(const Prediction& p) {
  std::vector<std::pair<std::string, double>> rows{{"matrix products", p.stage.gemm},
                                                   {"attention", p.stage.attention},
                                                   {"memory-bound kernels", p.stage.memory}};
  for (const GroupTime& one : p.groups)
    rows.emplace_back(fmt::format("communication, {}", one.group), one.exposed_s);
  rows.emplace_back("pipeline bubble", p.bubble_s);
  rows.emplace_back("optimizer", p.optimizer_s);
  if (p.offload_s > 0) rows.emplace_back("offload", p.offload_s);
  return rows;
}

std::string_view dtype_name(const TrainingConfig& config) {
  return machine::name(config.precision.dtype);
}

std::string experts_text(const TrainingConfig& config) {
  if (!config.model.has_experts()) return "";
  const std::string ep = fmt::format(" ep {}", config.expert_parallel);
  if (config.expert_tensor() == config.degrees.tp) return ep;
  return ep + fmt::format(" etp {}", config.expert_tensor());
}

}  // namespace

std::string text(const Report& report) {
  const Prediction& p = report.prediction;
  const TrainingConfig& c = report.config;
  const machine::Degrees& d = c.degrees;
  std::string out = fmt::format(
      "{} x {} ({}), {}, tp {} cp {} pp {} dp {}{}, ZeRO stage {}, {}\n"
      "{} sequences of {} tokens a step, micro-batch {}, {} micro-batches, {}\n\n",
      d.ranks(), report.cluster.gpu.name, report.cluster.name, report.software.name, d.tp, d.cp,
      d.pp, d.dp, experts_text(c), c.zero.stage, dtype_name(c), c.batch.global_batch_size,
      c.model.sequence, c.batch.micro_batch_size, c.micro_batches(), c.pipeline.schedule);
  out += fmt::format(
      "step           {:.4g} s ({:.4g} to {:.4g} s: 9 of 10 published runs are within this error)\n"
      "tokens         {}\nMFU            {:.1f} %\nHFU            {:.1f} %\n",
      p.step_s, p.low_s, p.high_s, harness::rate_text({p.tokens_per_s(), "per s"}), 100 * p.mfu,
      100 * p.hfu);
  if (p.before_freeze_s > 0)
    out += fmt::format(
        "freeze_step    {} updates: {:.4g} s a step before it; all other numbers are of a step "
        "after it\n",
        c.optimizer.freeze_step, p.before_freeze_s);
  if (p.joules > 0)
    out += fmt::format("energy         {:.4g} kWh a step, at the power of the data sheet\n",
                       p.joules / 3.6e6);
  const configuration::Bytes& gpu = p.held.gpu;
  if (!p.held.not_held.empty()) {
    out += fmt::format("memory         unknown: {}\n", p.held.not_held);
  } else {
    out += fmt::format("memory         {:.1f} of {:.1f} GB on a GPU: {}\n", gpu.total() / 1e9,
                       p.gpu_memory / 1e9, p.fits ? "fits" : "does not fit");
    out += fmt::format(
        "               parameters {:.1f}, gradients {:.1f}, optimizer {:.1f}, activations {:.1f}, "
        "buffers {:.1f} GB\n",
        gpu.parameters / 1e9, gpu.gradients / 1e9, gpu.optimizer / 1e9, gpu.activations / 1e9,
        gpu.buffers / 1e9);
  }
  if (p.checkpoint_s > 0)
    out += fmt::format("checkpoint     {:.3g} s to write 14 bytes a parameter to all nodes' NVMe\n",
                       p.checkpoint_s);
  out += fmt::format("\nPipeline stage {}, the busiest:\n", p.slowest_stage);
  for (const auto& [what, seconds] : rows_of(p))
    out +=
        fmt::format("  {:<24} {:>10.4f} s {:>6.1f} %\n", what, seconds, 100 * seconds / p.step_s);
  if (p.recompute_s > 0)
    out += fmt::format("  (recomputation takes {:.4f} s of these)\n", p.recompute_s);
  if (!p.groups.empty()) {
    out += fmt::format("\n{:<10} {:>6} {:<8} {:>12} {:>12} {:>12}\n", "group", "ranks", "links",
                       "GB sent", "exposed s", "hidden s");
    for (const GroupTime& one : p.groups)
      out += fmt::format("{:<10} {:>6} {:<8} {:>12.3f} {:>12.4f} {:>12.4f}\n", one.group, one.ranks,
                         one.on_network ? "network" : "node", one.bytes / 1e9, one.exposed_s,
                         one.hidden_s);
  }
  return out;
}

std::string explanation(const Report& report, const configuration::Resolved& resolved) {
  return fmt::format(
      "Software {}: {}\n\n{}\n"
      "A product takes the larger of flops / (peak x gemm_fraction x filled tiles x k / (k + "
      "gemm_depth)) and bytes / bandwidth.\n"
      "A collective takes messages x latency + bytes / rate, with the formulas of the algorithms "
      "(collectives/README.md).\n"
      "The pipeline is the simulation of schedule {} (pipeline/README.md).\n"
      "MFU counts the operations of layers/models/gpt_cost.h: half of core attention, no "
      "recomputation. HFU adds recomputation.\n"
      "Memory: {}\n\n{}",
      report.software.name, report.software.source, text(report.cluster),
      report.config.pipeline.schedule, report.prediction.held.assumption,
      configuration::text(resolved));
}

std::string json(const Report& report) {
  const Prediction& p = report.prediction;
  const machine::Degrees& d = report.config.degrees;
  harness::Json out{{"cluster", report.cluster.name},
                    {"software", std::string(report.software.name)},
                    {"gpus", d.ranks()},
                    {"degrees",
                     {{"tp", d.tp},
                      {"cp", d.cp},
                      {"pp", d.pp},
                      {"dp", d.dp},
                      {"ep", report.config.expert_parallel},
                      {"etp", report.config.expert_tensor()}}},
                    {"step_s", p.step_s},
                    {"interval_s", {p.low_s, p.high_s}},
                    {"tokens_per_s", p.tokens_per_s()},
                    {"model_flops", p.model_flops},
                    {"hardware_flops", p.hardware_flops},
                    {"mfu", p.mfu},
                    {"hfu", p.hfu},
                    {"joules", p.joules},
                    {"checkpoint_s", p.checkpoint_s},
                    {"bubble_s", p.bubble_s},
                    {"slowest_stage", p.slowest_stage}};
  for (const auto& [what, seconds] : rows_of(p)) out["breakdown_s"][what] = seconds;
  out["recompute_s"] = p.recompute_s;
  if (p.before_freeze_s > 0) out["step_before_freezing_s"] = p.before_freeze_s;
  out["groups"] = harness::Json::array();
  for (const GroupTime& one : p.groups)
    out["groups"].push_back({{"group", one.group},
                             {"ranks", one.ranks},
                             {"links", one.on_network ? "network" : "node"},
                             {"bytes_sent", one.bytes},
                             {"exposed_s", one.exposed_s},
                             {"hidden_s", one.hidden_s}});
  const configuration::Bytes& gpu = p.held.gpu;
  out["gpu_bytes"] = {{"parameters", gpu.parameters}, {"gradients", gpu.gradients},
                      {"optimizer", gpu.optimizer},   {"activations", gpu.activations},
                      {"buffers", gpu.buffers},       {"total", gpu.total()},
                      {"available", p.gpu_memory},    {"fits", p.fits}};
  return out.dump(2);
}

}  // namespace suite::predict
