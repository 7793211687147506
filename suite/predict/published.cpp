#include "suite/predict/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

#include "suite/predict/embedded.h"
#include "suite/predict/step.h"

namespace suite::predict {
namespace {

using layers::RecomputeGranularity;

// Splits a line at its commas outside of quotes.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

class Row {
 public:
  Row(const std::vector<std::string>& names, const std::vector<std::string>& fields) {
    if (names.size() != fields.size())
      throw std::logic_error("published_runs.csv: a row has another number of fields");
    for (std::size_t i = 0; i < names.size(); ++i) fields_[names[i]] = fields[i];
  }
  const std::string& text(const std::string& name) const { return fields_.at(name); }
  double real(const std::string& name) const {
    return text(name).empty() ? 0 : std::stod(text(name));
  }
  int whole(const std::string& name) const { return static_cast<int>(real(name)); }

 private:
  std::map<std::string, std::string> fields_;
};

// Narayanan et al. 2021, equation 3, and its first three quarters without recomputation.
double stated_flops(const TrainingConfig& config, bool recomputed) {
  const double h = config.model.hidden, l = config.model.layers, s = config.model.sequence;
  const double v = config.model.vocabulary, passes = recomputed ? 96 : 72;
  return passes * config.batch.global_batch_size * s * l * h * h *
         (1 + s / (6 * h) + v / (passes / 6 * l * h));
}

constexpr std::string_view use_names[] = {"predict", "fit", "chosen"};  // by Use

Use parse_use(const std::string& text) {
  const auto found = std::ranges::find(use_names, text);
  if (found == std::end(use_names))
    throw std::logic_error(fmt::format("published_runs.csv: unknown use '{}'", text));
  return static_cast<Use>(found - std::begin(use_names));
}

PublishedRun run_of(const Row& row) {
  PublishedRun run;
  run.use = parse_use(row.text("use"));
  run.source = row.text("source");
  run.table = row.text("table");
  run.model = row.text("model");
  run.software = row.text("software");
  run.inputs = row.text("inputs");
  run.cluster = row.text("hw").starts_with("H100") ? "dgx_h100" : "dgx_a100";
  TrainingConfig& config = run.config;
  config.model = TrainingConfig::Model({.layers = row.whole("layers"),
                                        .hidden = row.whole("hidden"),
                                        .heads = row.whole("heads"),
                                        .vocabulary = row.whole("vocab"),
                                        .sequence = row.whole("seq")});
  config.model.tokens = config.model.vocabulary;
  config.model.hidden_dropout = config.model.attention_dropout = 0.1;
  config.precision.dtype = machine::Dtype::float16;
  config.degrees = {
      .tp = row.whole("tp"), .cp = row.whole("cp"), .dp = row.whole("dp"), .pp = row.whole("pp")};
  config.batch.global_batch_size = row.whole("global_batch");
  config.batch.micro_batch_size = std::max(1, row.whole("micro_batch"));
  run.any_micro_batch = row.text("micro_batch").empty();
  run.any_virtual_stages = row.text("virtual_stages").empty();
  const std::string& recompute = row.text("recompute");
  run.any_recompute = recompute == "unstated";
  if (recompute == "full") config.activations.recompute_granularity = RecomputeGranularity::full;
  if (recompute == "selective+SP") {
    config.activations.recompute_granularity = RecomputeGranularity::selective;
    config.activations.sequence_parallel = true;
  }
  if (!run.any_virtual_stages && row.whole("virtual_stages") > 1) {
    config.pipeline.schedule = "interleaved_1f1b";
    config.pipeline.virtual_stages = row.whole("virtual_stages");
  }
  if (run.software == "deepspeed_zero3") config.zero.stage = 3;
  if (run.software == "megatron_core") {
    config.precision.dtype = machine::Dtype::bfloat16;
    config.zero.stage = 1;
    config.activations.sequence_parallel = config.degrees.tp > 1;
    config.activations.use_flash_attn = true;
  }
  run.stated_step_s = row.real("iter_s");
  run.stated_tflops = row.real("tflops_per_gpu");
  const bool hardware = row.text("pct_kind").starts_with("HFU");
  if (run.stated_tflops > 0) run.stated_flops = stated_flops(config, hardware);
  run.step_s = run.stated_step_s > 0
                   ? run.stated_step_s
                   : run.stated_flops / config.degrees.ranks() / (run.stated_tflops * 1e12);
  return run;
}

std::vector<int> divisors(int number) {
  std::vector<int> out;
  for (int i = 1; i <= number; ++i)
    if (number % i == 0) out.push_back(i);
  return out;
}

// Returns the configurations with every value of the inputs that are not published.
std::vector<TrainingConfig> candidates(const PublishedRun& run) {
  std::vector<TrainingConfig> out;
  const TrainingConfig& given = run.config;
  const int per_replica = given.batch.global_batch_size / given.degrees.dp;
  const std::vector<int> micro_batches =
      run.any_micro_batch ? divisors(per_replica) : std::vector{given.batch.micro_batch_size};
  const std::vector<int> virtual_stages =
      run.any_virtual_stages ? divisors(given.model.layers / given.degrees.pp)
                             : std::vector{given.pipeline.virtual_stages.value_or(1)};
  for (const int b : micro_batches)
    for (const int v : virtual_stages)
      for (const auto recompute : {RecomputeGranularity::none, RecomputeGranularity::full}) {
        TrainingConfig one = given;
        one.batch.micro_batch_size = b;
        if (b > 16) continue;
        if (run.any_recompute)
          one.activations.recompute_granularity = recompute;
        else if (recompute == RecomputeGranularity::full)
          continue;
        if (run.any_virtual_stages) {
          const bool interleaved = v > 1 && given.degrees.pp > 1;
          if (v > 1 && !interleaved) continue;
          if (interleaved && per_replica / b % given.degrees.pp != 0) continue;
          if (interleaved) {
            one.pipeline.schedule = "interleaved_1f1b";
            one.pipeline.virtual_stages = v;
          }
        }
        out.push_back(one);
      }
  return out;
}

Comparison compare(const PublishedRun& run, const Cluster& cluster) {
  Comparison best;
  best.run = run;
  const Software& software = find_software(run.software);
  const std::vector<TrainingConfig> all = candidates(run);
  for (const bool need_fit : {true, false}) {
    for (const TrainingConfig& one : all) {
      const Prediction prediction = predict_step(one, cluster, software);
      if (all.size() > 1 && need_fit && !prediction.fits) continue;
      if (best.predicted_s > 0 && prediction.step_s >= best.predicted_s) continue;
      best.predicted_s = prediction.step_s;
      if (all.size() > 1)
        best.chosen = fmt::format(
            "b {}, v {}{}{}", one.batch.micro_batch_size, one.pipeline.virtual_stages.value_or(1),
            one.activations.recompute_granularity == RecomputeGranularity::full ? ", full" : "",
            need_fit ? "" : " (none fits)");
    }
    if (best.predicted_s > 0) break;
  }
  return best;
}

std::vector<double> errors(const std::vector<Comparison>& all, Use use) {
  std::vector<double> out;
  for (const Comparison& one : all)
    if (one.run.use == use) out.push_back(std::abs(one.error()));
  std::ranges::sort(out);
  return out;
}

}  // namespace

std::vector<PublishedRun> published_runs() {
  std::vector<PublishedRun> runs;
  std::vector<std::string> names;
  std::string_view rest = embedded_published_runs();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.empty()) continue;
    if (names.empty())
      names = fields_of(line);
    else
      runs.push_back(run_of(Row(names, fields_of(line))));
  }
  return runs;
}

std::vector<Comparison> compare_published(const std::vector<Cluster>& clusters) {
  std::map<std::string, Cluster> known;
  for (const Cluster& one : clusters) known[one.name] = one;
  std::vector<Comparison> all;
  for (const PublishedRun& run : published_runs()) {
    if (!known.contains(run.cluster)) known[run.cluster] = read_cluster(run.cluster);
    all.push_back(compare(run, known[run.cluster]));
  }
  return all;
}

Accuracy accuracy(const std::vector<Comparison>& all, Use use) {
  const std::vector<double> each = errors(all, use);
  Accuracy out{static_cast<int>(each.size())};
  for (const double one : each) out.mean += one / static_cast<double>(each.size());
  if (!each.empty()) out.worst = each.back();
  return out;
}

double error_quantile(const std::vector<Comparison>& all, double share) {
  const std::vector<double> each = errors(all, Use::predict);
  const auto at = static_cast<std::size_t>(std::ceil(share * static_cast<double>(each.size())));
  return each.at(std::max<std::size_t>(at, 1) - 1);
}

std::string text(const std::vector<Comparison>& all) {
  std::string out =
      "| | run | GPUs | tp x pp x dp | published s | predicted s | error | chosen |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Comparison& one : all) {
    const machine::Degrees& d = one.run.config.degrees;
    const auto recompute = one.run.config.activations.recompute_granularity;
    out += fmt::format(
        "| {} | {}, {}{} | {} | {} x {} x {} | {:.2f} | {:.2f} | {:+.1f} % | {} |\n",
        one.run.use == Use::predict ? "" : use_names[static_cast<std::size_t>(one.run.use)],
        one.run.model, one.run.source.substr(0, one.run.source.find(" (")),
        one.run.any_recompute                          ? ""
        : recompute == RecomputeGranularity::full      ? ", full"
        : recompute == RecomputeGranularity::selective ? ", selective"
                                                       : "",
        d.ranks(), d.tp, d.pp, d.dp, one.run.step_s, one.predicted_s, 100 * one.error(),
        one.chosen);
  }
  out += "\n";
  for (const auto& [use, name] :
       {std::pair{Use::predict, "predicted"}, {Use::chosen, "chosen"}, {Use::fit, "fitted"}}) {
    const Accuracy rows = accuracy(all, use);
    out += fmt::format("{} rows {}: mean absolute error {:.1f} %, worst {:.1f} %.\n", rows.rows,
                       name, 100 * rows.mean, 100 * rows.worst);
  }
  return out;
}

}  // namespace suite::predict
