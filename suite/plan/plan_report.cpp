#include "suite/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "suite/plan/model_shape.h"

namespace suite::configuration {
namespace {

constexpr double GB = 1e9;

std::string gigabytes(double bytes) { return bytes == 0 ? "-" : fmt::format("{:.2f}", bytes / GB); }

std::string count(double number) {
  if (number >= 1e12) return fmt::format("{:.2f}T", number / 1e12);
  if (number >= 1e9) return fmt::format("{:.2f}B", number / 1e9);
  return fmt::format("{:.1f}M", number / 1e6);
}

std::string text(const Largest& largest) {
  if (largest.parameters == 0) return "none";
  const std::string than = largest.beyond ? "> " : "";
  if (largest.layers == 0) return than + count(largest.parameters);
  return fmt::format("{}{} ({} layers)", than, count(largest.parameters), largest.layers);
}

std::string model_line(const TrainingConfig& training) {
  const Model& m = training.model;
  if (!m.has_shape()) return fmt::format("model: {:.0f} parameters", parameters_of(m));
  return fmt::format(
      "model: {:.0f} parameters: {} layers, hidden {}, ffn {}, {} heads, {} tokens, sequence {}",
      parameters_of(m), m.layers, m.hidden, m.ffn(), m.heads, m.tokens, m.sequence);
}

std::string heading(const Plan& plan) {
  const TrainingConfig& t = plan.resolved.config;
  const machine::Degrees& d = t.degrees;
  std::string out = model_line(t) + "\n";
  out += fmt::format("GPUs: {} = tp {} x pp {} x cp {} x dp {}, {} each{}; GB are 10^9 bytes\n",
                     d.ranks(), d.tp, d.pp, d.cp, d.dp, gigabytes(plan.machine.gpu_memory) + " GB",
                     plan.machine.cpu_memory ? fmt::format(", {} GB of host memory each",
                                                           gigabytes(*plan.machine.cpu_memory))
                                             : "");
  out += fmt::format("batch: {} = micro-batch {} x accumulation {} x dp {}; {}, {}\n",
                     t.batch.global_batch_size, t.batch.micro_batch_size,
                     t.batch.gradient_accumulation_steps, d.dp, name(t.precision.dtype),
                     t.optimizer.type);
  out += fmt::format("Ψ = {:.0f} parameters on a rank of the largest stage, d = {} shards\n",
                     parameters_of_rank(t.model, d), t.shards());
  out += fmt::format("activations: {}\n", activation_formula(t));
  return out;
}

std::string_view about(Counting counting) {
  constexpr std::string_view texts[] = {
      ": arXiv:1910.02054 and those on offload; buffers as the configuration's sizes make them",
      ": with its distributed optimizer or FSDP; gradients float32 under bfloat16",
      ": estimate_zero2_model_states_mem_needs and …zero3…, for 16-bit values and Adam",
      ": this program"};
  return texts[static_cast<std::size_t>(counting)];
}

std::string table(const Plan& plan) {
  std::string out =
      fmt::format("  {:<41}{:>11}{:>11}{:>11}{:>13}{:>9}{:>10}{:>9}{:>9} {:>5}  {}\n",
                  "GB of a rank, on its GPU", "parameters", "gradients", "optimizer", "activations",
                  "buffers", "GPU", "CPU", "NVMe", "fits", "largest that fits");
  const Counting* last = nullptr;
  for (const PlanRow& row : plan.rows) {
    if (!last || *last != row.holding.counting)
      out += fmt::format("{}{}\n", name(row.holding.counting), about(row.holding.counting));
    last = &row.holding.counting;
    const std::string label = fmt::format("{} {}", row.asked_for ? ">" : " ", text(row.holding));
    if (!row.held.not_held.empty()) {
      out += fmt::format("{:<43}{}\n", label, row.held.not_held);
      continue;
    }
    const Bytes& gpu = row.held.gpu;
    out +=
        fmt::format("{:<43}{:>11}{:>11}{:>11}{:>13}{:>9}{:>10}{:>9}{:>9} {:>5}  {}\n", label,
                    gigabytes(gpu.parameters), gigabytes(gpu.gradients), gigabytes(gpu.optimizer),
                    gigabytes(gpu.activations), gigabytes(gpu.buffers), gigabytes(gpu.total()),
                    gigabytes(row.held.cpu.total()), gigabytes(row.held.nvme.total()),
                    row.fits ? "yes" : "no", text(row.largest));
    out += fmt::format("{:<6}{}\n", "", row.held.assumption);
  }
  return out;
}

nlohmann::ordered_json bytes_json(const Bytes& bytes) {
  return {{"parameters", bytes.parameters}, {"gradients", bytes.gradients},
          {"optimizer", bytes.optimizer},   {"activations", bytes.activations},
          {"buffers", bytes.buffers},       {"total", bytes.total()}};
}

}  // namespace

Plan make_plan(const Resolved& resolved, const Machine& machine) {
  Plan plan{resolved, machine, {}};
  std::vector<Holding> all = holdings();
  // Always include the combination that the configuration requests.
  const Holding asked = asked_for(resolved.config, Counting::paper);
  if (std::ranges::find(all, asked) == all.end())
    all.insert(std::ranges::find(all, Counting::megatron, &Holding::counting), asked);
  const Holding of_ours = asked_for(resolved.config, Counting::ours);
  if (std::ranges::find(all, of_ours) == all.end()) all.push_back(of_ours);
  for (const Holding& holding : all) {
    PlanRow row{holding, held(resolved.config, holding, machine), {}, false, false};
    row.fits = fits(row.held, machine);
    row.asked_for = holding == asked_for(resolved.config, holding.counting);
    if (row.held.not_held.empty()) row.largest = largest(resolved.config, holding, machine);
    plan.rows.push_back(std::move(row));
  }
  return plan;
}

std::string text(const Plan& plan) {
  return fmt::format("{}\n{}\n> is what the configuration asks for\n\n{}", text(plan.resolved),
                     heading(plan), table(plan));
}

std::string json(const Plan& plan) {
  const TrainingConfig& t = plan.resolved.config;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PlanRow& row : plan.rows) {
    nlohmann::ordered_json one{{"counting", name(row.holding.counting)},
                               {"stage", row.holding.stage},
                               {"offload_optimizer", row.holding.optimizer},
                               {"offload_param", row.holding.parameters},
                               {"asked_for", row.asked_for}};
    if (!row.held.not_held.empty()) {
      one["not_held"] = row.held.not_held;
    } else {
      one["assumption"] = row.held.assumption;
      one["gpu_bytes"] = bytes_json(row.held.gpu);
      one["cpu_bytes"] = bytes_json(row.held.cpu);
      one["nvme_bytes"] = bytes_json(row.held.nvme);
      one["fits"] = row.fits;
      one["largest_parameters"] = row.largest.parameters;
      one["largest_is_beyond"] = row.largest.beyond;
      if (row.largest.layers > 0) one["largest_layers"] = row.largest.layers;
    }
    rows.push_back(std::move(one));
  }
  const machine::Degrees& d = t.degrees;
  return nlohmann::ordered_json{
      {"configuration", nlohmann::ordered_json::parse(json(plan.resolved))},
      {"parameters", parameters_of(t.model)},
      {"parameters_of_rank", parameters_of_rank(t.model, d)},
      {"degrees", {{"gpus", d.ranks()}, {"tp", d.tp}, {"pp", d.pp}, {"cp", d.cp}, {"dp", d.dp}}},
      {"shards", t.shards()},
      {"gpu_memory", plan.machine.gpu_memory},
      {"activations", activation_formula(t)},
      {"rows", std::move(rows)}}
      .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace suite::configuration
