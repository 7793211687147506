#include "suite/plan/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "harness/json/json.h"
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

// Returns the model, the degrees and the batch of the table.
std::string subject(const Plan& plan) {
  const TrainingConfig& t = plan.resolved.config;
  const Model& m = t.model;
  const machine::Degrees& d = t.degrees;
  std::string out = fmt::format("model: {:.0f} parameters", parameters_of(m));
  if (m.has_shape())
    out += fmt::format(": {} layers, hidden {}, ffn {}, {} heads\n       {} tokens, sequence {}",
                       m.layers, m.hidden, m.ffn(), m.heads, m.tokens, m.sequence);
  out += fmt::format("\nGPUs: {} = tp {} x pp {} x cp {} x dp {}, {} each{}\n", d.ranks(), d.tp,
                     d.pp, d.cp, d.dp, gigabytes(plan.machine.gpu_memory) + " GB",
                     plan.machine.cpu_memory ? fmt::format(", {} GB of host memory each",
                                                           gigabytes(*plan.machine.cpu_memory))
                                             : "");
  out += fmt::format("batch: {} = micro-batch {} x accumulation {} x dp {}; {}, {}\n",
                     t.batch.global_batch_size, t.batch.micro_batch_size,
                     t.batch.gradient_accumulation_steps, d.dp, name(t.precision.dtype),
                     t.optimizer.type);
  return out;
}

std::string symbols(const TrainingConfig& t) {
  return fmt::format(
      "Ψ = {:.0f} parameters on a rank of the largest stage, d = {} shards\nactivations: {}\n",
      parameters_of_rank(t), t.shards(), activation_formula(t));
}

std::string_view about(Counting counting) {
  constexpr std::string_view texts[] = {
      ": arXiv:1910.02054 and the papers on offload; buffers have the configuration's sizes",
      ": with its distributed optimizer or FSDP; gradients float32 under bfloat16",
      ": estimate_zero2_model_states_mem_needs and …zero3…, for 16-bit values and Adam",
      ": this program"};
  return texts[static_cast<std::size_t>(counting)];
}

// One way to hold the training run, by every formula that has numbers for it.
struct Row {
  Holding holding;
  std::array<const PlanRow*, 4> of{};  // one per Counting; null: no numbers
  bool asked_for = false;

  const PlanRow* first() const {  // the paper's, if it has numbers
    const auto found = std::ranges::find_if(of, [](const PlanRow* row) { return row; });
    return found == of.end() ? nullptr : *found;
  }
};

std::vector<Row> rows_of(const Plan& plan) {
  std::vector<Row> rows;
  for (const PlanRow& row : plan.rows) {
    Holding holding = row.holding;
    holding.counting = Counting::paper;
    auto at = std::ranges::find(rows, holding, &Row::holding);
    if (at == rows.end()) at = rows.insert(rows.end(), Row{holding});
    at->asked_for = at->asked_for || row.asked_for;
    if (row.held.not_held.empty()) at->of[static_cast<std::size_t>(row.holding.counting)] = &row;
  }
  std::erase_if(rows, [](const Row& row) { return !row.first(); });
  std::ranges::stable_sort(rows, {}, [](const Row& row) { return row.holding.stage; });
  return rows;
}

std::string memory_cell(double bytes, double limit) {
  return gigabytes(bytes) + (bytes > limit ? "!" : " ");
}

std::string memory_table(const Plan& plan, const std::vector<Row>& rows) {
  const double host = plan.machine.cpu_memory.value_or(std::numeric_limits<double>::infinity());
  std::string out = fmt::format(
      "         offloaded to            GB on a GPU, by formula                     GB per rank "
      "on\n"
      "  ZeRO   optimizer  parameters  {:>10} {:>11} {:>10} {:>10}  {:>10} {:>10}\n",
      "paper ", "Megatron ", "DeepSpeed ", "ours ", "CPU ", "NVMe");
  for (const Row& row : rows) {
    const Holding& holding = row.holding;
    const auto place = [](const std::string& device) { return device == "none" ? "-" : device; };
    out += fmt::format("{} {:>4}   {:<9}  {:<10}  ", row.asked_for ? ">" : " ", holding.stage,
                       place(holding.optimizer), place(holding.parameters));
    constexpr std::array<int, 4> widths{10, 11, 10, 10};
    for (std::size_t i = 0; i < widths.size(); ++i)
      out += fmt::format(
          "{:>{}} ",
          row.of[i] ? memory_cell(row.of[i]->held.gpu.total(), plan.machine.gpu_memory) : "- ",
          widths[i]);
    const Held& held = row.first()->held;
    out += fmt::format(" {:>10} {:>10}", memory_cell(held.cpu.total(), host),
                       gigabytes(held.nvme.total()));
    out.erase(out.find_last_not_of(' ') + 1);
    out += "\n";
  }
  return out;
}

// Returns the largest category of a row on its GPU, or on its CPU if only the CPU part does not
// fit.
std::string largest_category(const PlanRow& row, const Machine& machine) {
  const bool host = row.held.gpu.total() <= machine.gpu_memory && !row.fits;
  const Bytes& bytes = host ? row.held.cpu : row.held.gpu;
  const std::pair<std::string_view, double> all[] = {{"parameters", bytes.parameters},
                                                     {"gradients", bytes.gradients},
                                                     {"optimizer states", bytes.optimizer},
                                                     {"activations", bytes.activations},
                                                     {"buffers", bytes.buffers}};
  const auto most = std::ranges::max_element(all, {}, &std::pair<std::string_view, double>::second);
  return fmt::format("{} take most{}: {} of {} GB", most->first, host ? " on the host" : "",
                     gigabytes(most->second), gigabytes(bytes.total()));
}

// Returns the row that fits with the least sharding, without offload if possible.
const Row* simplest_that_fits(const std::vector<Row>& rows) {
  const Row* offloaded = nullptr;
  for (const Row& row : rows) {
    if (!row.first()->fits) continue;
    if (row.holding.optimizer == "none" && row.holding.parameters == "none") return &row;
    if (!offloaded) offloaded = &row;
  }
  return offloaded;
}

// Returns whether the configuration fits, its limit, and the lowest stage that fits.
std::string result(const Plan& plan, const std::vector<Row>& rows) {
  std::string out;
  if (const auto asked = std::ranges::find(rows, true, &Row::asked_for); asked != rows.end()) {
    const PlanRow& row = *asked->first();
    out += fmt::format("{}: ZeRO {}: {} of {} GB per GPU\n", row.fits ? "FITS" : "DOES NOT FIT",
                       text(asked->holding), gigabytes(row.held.gpu.total()),
                       gigabytes(plan.machine.gpu_memory));
    out += fmt::format("limit: {}; largest model that fits: {}\n",
                       largest_category(row, plan.machine), text(row.largest));
  }
  const Row* const fitting = simplest_that_fits(rows);
  return out + fmt::format("lowest ZeRO stage that fits: {}\n",
                           fitting ? text(fitting->holding) : "no stage, with or without offload");
}

// Returns counts of facts that affect how a reader understands the table.
std::string notes(const Plan& plan) {
  std::vector<std::string> parts;
  const auto add = [&](std::size_t number, std::string_view one, std::string_view more) {
    if (number > 0) parts.push_back(fmt::format("{} {}", number, number == 1 ? one : more));
  };
  add(plan.resolved.ignored.size(), "key of the configuration has no effect",
      "keys of the configuration have no effect");
  add(plan.resolved.warnings.size(), "warning", "warnings");
  add(static_cast<std::size_t>(std::ranges::count_if(
          plan.resolved.entries, [](const Entry& entry) { return !entry.since.empty(); })),
      "default depends on DeepSpeed's version", "defaults depend on DeepSpeed's version");
  parts.emplace_back("--explain lists every key and formula");
  return fmt::format("{}\n", fmt::join(parts, "; "));
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

harness::Json bytes_json(const Bytes& bytes) {
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
  const std::vector<Row> rows = rows_of(plan);
  return fmt::format(
      "{}\n{}\n> configuration   ! more than the memory   CPU, NVMe: by the paper's formulas\n"
      "DeepSpeed's estimator counts model states only; ours: as this program allocates them\n"
      "GB are 10^9 bytes\n\n{}{}",
      result(plan, rows), memory_table(plan, rows), subject(plan), notes(plan));
}

std::string explanation(const Plan& plan) {
  return fmt::format("{}\n{}\n> marks the configuration's own row\n\n{}", text(plan.resolved),
                     symbols(plan.resolved.config), table(plan));
}

std::string json(const Plan& plan) {
  const TrainingConfig& t = plan.resolved.config;
  harness::Json rows = harness::Json::array();
  for (const PlanRow& row : plan.rows) {
    harness::Json one{{"counting", name(row.holding.counting)},
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
  return harness::Json{
      {"configuration", harness::Json::parse(json(plan.resolved))},
      {"parameters", parameters_of(t.model)},
      {"parameters_of_rank", parameters_of_rank(t)},
      {"degrees", {{"gpus", d.ranks()}, {"tp", d.tp}, {"pp", d.pp}, {"cp", d.cp}, {"dp", d.dp}}},
      {"shards", t.shards()},
      {"gpu_memory", plan.machine.gpu_memory},
      {"activations", activation_formula(t)},
      {"rows", std::move(rows)}}
      .dump(2);
}

}  // namespace suite::configuration
