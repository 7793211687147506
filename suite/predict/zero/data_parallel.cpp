#include "suite/predict/zero/data_parallel.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "suite/plan/model_shape.h"
#include "suite/predict/kernel_time.h"
#include "suite/trainer/model_chunks.h"

namespace suite::predict {
namespace {

using collectives::CollectiveCalls;
using layers::RecomputeGranularity;
using machine::Operation;

double as_double(std::int64_t value) { return static_cast<double>(value); }
double value_bytes(const TrainingConfig& config) {
  return as_double(static_cast<std::int64_t>(machine::size_of(config.precision.dtype)));
}

// The use of a message. A step hides reductions behind backward, and gathers behind computing. It
// waits for all other messages. Compressed sums begin after backward.
enum class Use : unsigned char { reduction, compressed, gather, update };

struct Sent {
  std::string group;
  Use use = Use::update;
  Spread spread;
  double bytes = 0, seconds = 0;
};

// A search for the largest model predicts stages of thousands of layers, whose ends do not matter.
constexpr int most_declared_layers = 128;

// Returns the bytes of a gradient on the wire.
double gradient_bytes(const TrainingConfig& config, const Software& software) {
  const TrainingConfig::Zero& zero = config.zero;
  const std::string& named =
      zero.communication_data_type.empty() ? zero.grad_accum_dtype : zero.communication_data_type;
  if (!named.empty()) return named == "fp32" ? 4 : 2;
  return std::max(software.gradient_bytes, value_bytes(config));
}

// The usual keys: volumes of the papers (zero/cost/cost.h).
std::vector<Sent> by_closed_form(const TrainingConfig& config, const Cluster& cluster,
                                 const Software& software, const std::vector<Replicated>& parts) {
  const int z = config.zero.stage, m = config.micro_batches(), d = config.shards();
  const bool one_adapter = software.one_adapter && z == 3;
  const double gradients = gradient_bytes(config, software), values = value_bytes(config);
  std::vector<Sent> all;
  // width: bytes of a parameter.
  const auto add = [&](Use use, Operation operation, double width, double times) {
    Sent sent{"dp", use, spread(cluster, d, config.degrees.tp)};
    if (d == 1) sent = {"edp", use, parts.back().group};  // only experts have replicas
    for (const Replicated& one : parts) {
      const double bytes = one.parameters * width;
      sent.bytes += times * sent_bytes(operation, one.ranks, bytes);
      sent.seconds += times * collective_s(cluster, operation, one.group, bytes, one_adapter);
    }
    all.push_back(sent);
  };
  if (z == 0) {
    add(Use::reduction, Operation::all_reduce, gradients, 1);
    return all;
  }
  add(Use::reduction, Operation::reduce_scatter, gradients, z >= 2 ? m : 1);
  if (z < 3) {
    if (config.zero.options.all_gathers_values)
      add(Use::gather, Operation::all_gather, values, 1);
    else
      add(Use::gather, Operation::broadcast, values / d, d);
    return all;
  }
  const bool full = config.activations.recompute_granularity == RecomputeGranularity::full;
  add(Use::gather, Operation::all_gather, values, m * (full ? software.gathers : 2));
  return all;
}

Use use_of(const CollectiveCalls& calls) {
  if (calls.group != "dp" && calls.group != "edp" && !calls.group.starts_with("qgz") &&
      calls.group != "hpz")
    return Use::update;
  if (calls.what.ends_with("values")) return Use::gather;
  if (calls.what.starts_with("compressed")) return Use::compressed;
  return calls.what.ends_with("gradients") ? Use::reduction : Use::update;
}

// Returns the bytes that the kernels of codes move in each use of `elements` elements of a bucket,
// a shard of which has 1/ranks. Values: a shard is read and coded, all codes are read and decoded.
// Gradients: they are read and coded, and as many codes are decoded and added to sums, which are
// read and written. Compressed sums keep errors: value and error are read, error and code written;
// so is the sum of a share; and the result is decoded.
double code_bytes(const CollectiveCalls& calls, double value) {
  const double codes = as_double(calls.elements) *
                       as_double(static_cast<std::int64_t>(machine::size_of(calls.dtype)));
  const double times = as_double(calls.calls);
  if (calls.what == "codes of values") {
    const double elements = codes / (1 + 1.0 / 32);
    return times * (elements * value + codes) * (1 + 1.0 / calls.ranks);
  }
  if (calls.what == "codes of gradients") {
    const double elements = codes / (0.5 + 1.0 / 32);
    return times * (elements * 4 + codes + codes + elements * 8);
  }
  return 0;
}
constexpr double bytes_of_errors = 4 + 4 + 4 + 4 + 8;  // a compressed element

std::vector<Sent> by_declaration(const TrainingConfig& config, const Cluster& cluster,
                                 const Software& software, const ZeroCalls& zero) {
  const int z = config.zero.stage, m = config.micro_batches();
  const bool full = config.activations.recompute_granularity == RecomputeGranularity::full;
  const int gathers = full ? software.gathers : 2;
  const bool secondary = zero.options.plus_plus.has_secondary();
  std::vector<Sent> all;
  // One message of a bucket after another takes the time of all bytes at once, as in the closed
  // form: a pass pays for latency once.
  struct Passed {
    Sent sent;
    Operation operation{};
    machine::Dtype dtype{};
    double whole = 0, passes = 1;
  };
  std::vector<Passed> passed;
  for (const CollectiveCalls& one : zero.calls) {
    const Use use = use_of(one);
    const Spread ranks = spread_of(config, cluster, one.group, one.ranks);
    const double whole =
        as_double(one.elements) * as_double(static_cast<std::int64_t>(machine::size_of(one.dtype)));
    Sent sent{one.group, use, ranks, sent_bytes(config, one)};
    if (use == Use::update) {
      sent.seconds = as_double(one.calls) * collective_s(cluster, one.operation, ranks, whole);
      all.push_back(sent);
      continue;
    }
    sent.seconds = streaming_s(cluster.gpu, code_bytes(one, value_bytes(config)), 0);
    double passes = 1;
    if (use == Use::reduction) passes = z >= 2 ? m : 1;
    if (use == Use::gather && z == 3)
      passes = m * (!secondary ? gathers : one.group == "hpz" ? gathers - 1 : 1);
    if (one.operation == Operation::broadcast) passes = one.ranks;
    const auto known = std::ranges::find_if(passed, [&](const Passed& other) {
      return other.sent.group == one.group && other.sent.use == use &&
             other.operation == one.operation && other.dtype == one.dtype;
    });
    Passed& pass = known == passed.end()
                       ? passed.emplace_back(
                             Passed{{one.group, use, ranks}, one.operation, one.dtype, 0, passes})
                       : *known;
    pass.sent.bytes += sent.bytes;
    pass.sent.seconds += sent.seconds;
    pass.whole += as_double(one.calls) * whole;
  }
  for (Passed& one : passed) {
    const Spread& ranks = one.sent.spread;
    const bool one_adapter = software.one_adapter && z == 3 && one.sent.group == "dp";
    one.sent.seconds +=
        one.operation == Operation::all_to_all
            ? exchange_s(cluster, ranks, one.passes * (ranks.ranks - 1), one.sent.bytes)
            : one.passes *
                  collective_s(cluster, one.operation, ranks, one.whole / one.passes, one_adapter);
    all.push_back(one.sent);
  }
  const auto compressed = std::ranges::find(all, Use::compressed, &Sent::use);
  if (compressed != all.end())
    compressed->seconds +=
        streaming_s(cluster.gpu, bytes_of_errors * as_double(zero.declared.layout.elements), 6);
  return all;
}

}  // namespace

void add(std::vector<GroupTime>& groups, const GroupTime& more) {
  if (more.ranks == 1) return;
  const auto known = std::ranges::find(groups, more.group, &GroupTime::group);
  if (known == groups.end()) {
    groups.push_back(more);
    return;
  }
  known->bytes += more.bytes;
  known->exposed_s += more.exposed_s;
  known->hidden_s += more.hidden_s;
}

std::vector<Replicated> replicated(const TrainingConfig& config, const Cluster& cluster) {
  const int d = config.shards(), t = config.degrees.tp, holders = config.expert_shards();
  const double psi = configuration::parameters_of_rank(config);
  if (!config.experts_apart()) return {{psi, d, spread(cluster, d, t)}};
  const layers::MoeParameters each = moe_parameters(config.model.mixture(), expert_degrees(config));
  const double experts =
      as_double(config.model.moe_layers()) / config.degrees.pp * as_double(each.of_experts);
  return {{psi - experts, d, spread(cluster, d, t)},
          {experts, holders, spread(cluster, holders, expert_degrees(config).ranks())}};
}

double updated_elements(const TrainingConfig& config, const std::vector<Replicated>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0, [&](double sum, const Replicated& one) {
    return sum + (config.zero.stage == 0 ? one.parameters : one.shard());
  });
}

double DataParallel::exposed_s() const {
  double seconds = 0;
  for (const GroupTime& one : groups) seconds += one.exposed_s;
  return seconds;
}

DataParallel data_parallel(const TrainingConfig& config, const Cluster& cluster,
                           const Software& software, int stage, const StageSeconds& seconds,
                           const std::vector<Replicated>& parts) {
  DataParallel out;
  const bool usual_stage_3 = config.zero.stage == 3 && config.most_shards() > 1 &&
                             config.model.layers / config.degrees.pp <= most_declared_layers;
  const bool declares =
      sends_by_declaration(config) || (usual_stage_3 && is_step(config, cluster, software));
  if (declares) out.declared = zero_calls(config, cluster, software, stage);
  if (!declares && config.most_shards() == 1) return out;
  const std::vector<Sent> all = declares ? by_declaration(config, cluster, software, *out.declared)
                                         : by_closed_form(config, cluster, software, parts);
  // Hides the communication of some uses behind computing, except for the last of its buckets.
  const auto hide = [&](std::initializer_list<Use> uses, bool hides, double beside,
                        double buckets) {
    double sum = 0;
    for (const Sent& one : all)
      if (std::ranges::find(uses, one.use) != uses.end()) sum += one.seconds;
    const double exposed = hides ? std::max(sum / buckets, sum - beside) : sum;
    for (const Sent& one : all) {
      if (std::ranges::find(uses, one.use) == uses.end()) continue;
      const double mine = exposed < sum ? one.seconds * exposed / sum : one.seconds;
      add(out.groups, {one.group, one.spread.ranks, one.spread.leaves_node(), one.bytes, mine,
                       one.seconds - mine});
    }
  };
  const int z = config.zero.stage;
  const double m = config.micro_batches(),
               layers = std::max(1, config.model.layers / config.degrees.pp);
  const double reductions = z >= 2 ? m : 1;
  const double computing = m * (seconds.backward() + seconds.forward.total());
  if (z == 3 && software.reduction_overlap) {  // both share the links
    hide({Use::reduction, Use::gather}, true, computing, layers * m);
  } else {
    hide({Use::reduction}, software.reduction_overlap && z < 3, reductions * seconds.backward(),
         layers * reductions);
    hide({Use::gather}, software.dp_overlap, z == 3 ? computing : seconds.forward.total(),
         z == 3 ? layers * m : layers);
  }
  hide({Use::compressed, Use::update}, false, 0, 1);
  return out;
}

}  // namespace suite::predict
