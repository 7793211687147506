#include "suite/predict/zero/zero_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/base/names.h"
#include "suite/configuration/group_algorithms.h"
#include "suite/trainer/model_chunks.h"
#include "suite/trainer/validation.h"
#include "zero/matrices/muon.h"
#include "zero/one_bit/one_bit_momenta.h"
#include "zero/stages/step.h"

namespace suite::predict {
namespace {

constexpr machine::Transport transport = machine::Transport::shared_memory;

// Returns the configuration that the step would run, with gradients on the wire as the software
// sends them.
TrainingConfig as_step(TrainingConfig config, const Cluster& cluster, const Software& software) {
  zero::PlusPlusOptions& plus_plus = config.zero.options.plus_plus;
  if (config.zero.stage < 3) plus_plus = {};
  if (!plus_plus.has_secondary()) {
    const Spread dp = spread(cluster, config.shards(), config.degrees.tp);
    plus_plus.near_ranks = dp.ranks % dp.in_node == 0 ? dp.in_node : dp.ranks;
  }
  // The cluster has the rates, and the software the overlap.
  config.transport = transport;
  config.graph = false;
  if (config.experts_apart()) config.zero.overlap_comm = false;
  const machine::Dtype dtype = config.precision.dtype;
  const TrainingConfig::Zero& zero = config.zero;
  const bool named = !zero.communication_data_type.empty() || !zero.grad_accum_dtype.empty(),
             coded = !zero.options.gradient_compression.algorithm.empty() ||
                     plus_plus.quantized_gradients || config.optimizer.is_one_bit();
  if (software.gradient_bytes == 2 && machine::size_of(dtype) == 2 && !named && !coded)
    config.zero.communication_data_type = dtype == machine::Dtype::float16 ? "fp16" : "bf16";
  return config;
}

// Returns the rank of dp that orthogonalizes the most elements, the first of them.
int busiest_rank(const configuration::DeclaredStage& declared, bool sharded) {
  if (!sharded) return 0;
  const zero::Layout& layout = declared.layout;
  std::vector<std::int64_t> elements(static_cast<std::size_t>(layout.shards));
  for (const zero::Bucket& bucket : layout.buckets) {
    if (!bucket.matrices) continue;
    const std::int64_t shard = layout.shard_elements(bucket);
    for (const int row : bucket.rows) {
      const auto at = static_cast<std::size_t>(row);
      const std::int64_t of_row = declared.plan.rows[at].elements,
                         first = layout.offsets[at] - bucket.range.begin;
      for (int rank = 0; rank < layout.shards; ++rank)
        if (const int i = layout.index(bucket, rank);
            first / shard <= i && i <= (first + of_row - 1) / shard)
          elements[static_cast<std::size_t>(rank)] += of_row;
    }
  }
  return static_cast<int>(std::ranges::max_element(elements) - elements.begin());
}

}  // namespace

bool is_step(const TrainingConfig& config, const Cluster& cluster, const Software& software) {
  try {
    validate(as_step(config, cluster, software));
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

bool sends_by_declaration(const TrainingConfig& config) {
  const TrainingConfig::Zero& zero = config.zero;
  const TrainingConfig::Zero usual;
  const zero::PlusPlusOptions& plus_plus = zero.options.plus_plus;
  const std::string& rule = config.optimizer.type;
  const bool of_parts = zero.options.stage3_max_reuse_distance > 0 ||
                        zero.param_persistence_threshold != usual.param_persistence_threshold ||
                        zero.model_persistence_threshold != usual.model_persistence_threshold;
  return (zero.stage == 3 && (of_parts || plus_plus.has_secondary() ||
                              plus_plus.quantized_weights || plus_plus.quantized_gradients)) ||
         !zero.options.gradient_compression.algorithm.empty() || !config.frozen.empty() ||
         ((zero.stage == 1 || zero.stage == 2) && !zero.options.reduce_scatters) ||
         rule == "lamb" || rule == "muon" || rule == "adafactor" || config.optimizer.is_one_bit();
}

ZeroCalls zero_calls(const TrainingConfig& config, const Cluster& cluster, const Software& software,
                     int stage) {
  const TrainingConfig run = as_step(config, cluster, software);
  validate(run);
  // The training step gathers the values for recomputation and again for backward.
  TrainingConfig gathered = run;
  if (software.gathers == 2)
    gathered.activations.recompute_granularity = layers::RecomputeGranularity::none;
  ZeroCalls out{.declared = configuration::declare_stage(gathered, stage, run.micro_batches()),
                .options = run.step_options()};
  const auto& [schedules, plan, parts, layout, selected, passes] = out.declared;
  out.options.rule =
      zero::rule_after(out.options.rule, zero::freeze_step(out.options.rule).value_or(0) + 1);
  const bool sharded = zero::is_sharded(run.zero.stage, plan);
  if (run.optimizer.type == "muon") out.dp_rank = busiest_rank(out.declared, sharded);
  out.calls = zero::expected_calls(run.zero.stage, plan, layout, out.options, passes, selected,
                                   out.dp_rank);
  if (run.counts_tokens())
    out.calls.push_back({"dp", machine::Operation::all_reduce, machine::Dtype::float64, plan.dp, 1,
                         1, "tokens that count"});
  return out;
}

void check_frozen(const TrainingConfig& config) {
  if (config.frozen.empty()) return;
  TrainingConfig whole = config;
  whole.degrees = {};
  whole.expert_parallel = 1;
  whole.expert_tensor_parallel.reset();
  whole.activations = {};
  whole.pipeline = {};
  std::vector<std::string> names;
  bool trains = false;
  for (const zero::GradientRow& row : configuration::declare_stage(whole, 0, 1).plan.rows) {
    names.push_back(row.parameter);
    trains = trains || !row.frozen;
  }
  for (const std::string& pattern : config.frozen_patterns()) {
    TrainingConfig one;
    one.frozen = pattern;
    if (one.frozen_names(names).empty())
      throw std::invalid_argument("freeze: " + machine::unknown("parameter", pattern, names));
  }
  if (!trains)
    throw std::invalid_argument(fmt::format(
        "freeze is {}; expected patterns that leave a parameter to train", config.frozen));
}

TrainedParts trained_parts(const TrainingConfig& config, int stage) {
  validate(config);
  TrainedParts out;
  double all = 0, trained = 0;
  for (const zero::GradientRow& row : configuration::declare_stage(config, stage, 1).plan.rows) {
    if (!row.parameter.ends_with(".weight")) continue;
    const bool tied = !config.model.untie_embeddings_and_output_weights;
    if (row.parameter == (tied ? "embedding.token.weight" : "output.weight"))
      out.head = !row.frozen;
    if (!row.parameter.starts_with("blocks.")) continue;
    all += static_cast<double>(row.elements);
    if (!row.frozen) trained += static_cast<double>(row.elements);
  }
  if (all > 0) out.of_blocks = trained / all;
  return out;
}

Spread spread_of(const TrainingConfig& config, const Cluster& cluster, std::string_view group,
                 int ranks) {
  const machine::Degrees& degrees = config.degrees;
  const int t = degrees.tp, of_stage = t * degrees.cp * degrees.dp;
  const int stride = group == "tp" || group == "fp8"         ? 1
                     : group == "pp" || group == "embedding" ? of_stage
                     : group == "edp"                        ? expert_degrees(config).ranks()
                     : group == "qgz_far"                    ? of_stage / ranks
                                                             : t;
  return spread(cluster, ranks, stride);
}

double sent_bytes(const TrainingConfig& config, const collectives::CollectiveCalls& calls) {
  if (calls.ranks == 1 || calls.elements == 0) return 0;
  if (config.transport != transport) {
    TrainingConfig run = config;
    run.transport = transport;
    return sent_bytes(run, calls);
  }
  const collectives::GroupAlgorithms algorithms = group_algorithms(config, calls.group);
  const std::string_view algorithm = collectives::usual_algorithm(calls, transport, algorithms);
  collectives::CallsCost cost;
  cost.add(calls, algorithm, 0);
  double bytes = 0;
  for (const auto& [label, traffic] : cost.traffic(calls.group))
    bytes += static_cast<double>(traffic.bytes_sent);
  return bytes;
}

}  // namespace suite::predict
