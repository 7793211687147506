#include "zero/cost/cost.h"

#include <algorithm>
#include <set>

#include "collectives/communicator/communicator.h"
#include "machine/base/reject.h"
#include "zero/cost/memory_cost.h"
#include "zero/eight_bit/adamw_8bit.h"
#include "zero/matrices/adafactor.h"
#include "zero/matrices/muon.h"
#include "zero/one_bit/one_bit_lamb.h"
#include "zero/optimizers/global_norm.h"
#include "zero/stages/compressed_reduction.h"
#include "zero/stages/lamb.h"
#include "zero/stages/prefetch.h"
#include "zero/stages/publisher.h"
#include "zero/zero_plus_plus/quantized_gradients.h"
#include "zero/zero_plus_plus/quantized_weights.h"
#include "zero/zero_plus_plus/secondary_shards.h"

namespace zero {
namespace {
using machine::Operation;

std::uint64_t bytes_of(std::int64_t elements, Dtype dtype) {
  return static_cast<std::uint64_t>(elements) * machine::size_of(dtype);
}

class Calls {
 public:
  // count: elements of the whole buffer, or of a share (deals_in_shares).
  void add(std::string_view group, Operation operation, Dtype dtype, int ranks, std::int64_t count,
           std::int64_t calls, std::string_view what, int root = 0) {
    if (ranks == 1 || count == 0 || calls == 0) return;
    const std::int64_t elements = collectives::deals_in_shares(operation) ? count * ranks : count;
    CollectiveCalls more{std::string(group), operation, dtype, ranks, elements, calls,
                         std::string(what),  root};
    for (CollectiveCalls& known : calls_) {
      more.calls = known.calls;
      if (known != more) continue;
      known.calls += calls;
      return;
    }
    more.calls = calls;
    calls_.push_back(std::move(more));
  }
  std::vector<CollectiveCalls> take() { return std::move(calls_); }

 private:
  std::vector<CollectiveCalls> calls_;
};

// Returns the buckets that stage 3 gathers in a pass after the first.
std::vector<int> gathers(const Layout& layout, const StepOptions& options, const Usage& usage) {
  const Uses uses = bucket_uses(layout, usage.uses);
  std::vector<std::int64_t> elements;
  for (const Bucket& bucket : layout.buckets) elements.push_back(bucket.range.size());
  return fetches(uses, Uses(uses.size()), kept(uses, elements, options.stage3_max_reuse_distance));
}

bool compresses(const GradientPlan& plan, const StepOptions& options) {
  return plan.dp > 1 && !options.gradient_compression.algorithm.empty();
}

// Options whose compressed sums are those of momenta.
StepOptions of_momenta(StepOptions options) {
  options.gradient_compression = {.algorithm = "one_bit"};
  return options;
}

collectives::CompressedCall call_of(std::size_t segment, const GradientPlan& plan,
                                    const Layout& layout, const StepOptions& options,
                                    const Selected& selected) {
  return compressed_call(options.gradient_compression, plan.dp,
                         layout.segments[segment].range.size(),
                         selected.empty() ? 0 : selected[segment]);
}

// Each rank sends its part to all others, or a part to each.
void add_compressed(Calls& calls, const Bucket& bucket, const GradientPlan& plan,
                    const Layout& layout, const StepOptions& options, const Selected& selected) {
  for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i)
    for (const auto& [label, bytes] : collectives::bytes_sent(
             options.gradient_compression.algorithm, call_of(i, plan, layout, options, selected))) {
      const std::uint64_t part =
          bytes / static_cast<std::uint64_t>(plan.dp - 1) / size_of(label.dtype);
      calls.add("dp", label.operation, label.dtype, plan.dp, static_cast<std::int64_t>(part), 1,
                sums_momenta(options.rule) ? "compressed momenta" : "compressed gradients");
    }
}

void add_values(Calls& calls, int stage, const GradientPlan& plan, const Layout& layout,
                const StepOptions& options, const Passes& passes) {
  const auto gather_codes = [&](const Bucket& bucket, std::int64_t times) {
    calls.add(name(bucket.over), Operation::all_gather, Dtype::uint8, bucket.shards,
              weight_code_bytes(layout, bucket), times, "codes of values");
  };
  const auto gather = [&](const Bucket& bucket, std::int64_t shard, std::int64_t times) {
    calls.add(name(bucket.over), Operation::all_gather, plan.value_dtype, bucket.shards, shard,
              times, "values");
  };
  const auto publish = [&](const Bucket& bucket, std::int64_t run, std::int64_t times) {
    if (!broadcasts_values(stage, options)) return gather(bucket, run, times);
    for (int root = 0; root < bucket.shards; ++root)
      calls.add(name(bucket.over), Operation::broadcast, plan.value_dtype, bucket.shards, run,
                times, "values", root);
  };
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen || (stage == 3 && !bucket.persistent)) continue;
    const std::int64_t shard = layout.shard_elements(bucket);
    if (shard == 0) continue;
    const std::int64_t run = publish_run(shard, bucket.shards, options.allgather_bucket_size);
    publish(bucket, run, shard / run);
    publish(bucket, shard % run, 1);
  }
  if (stage < 3) return;
  const PlusPlusOptions& plus_plus = options.plus_plus;
  for (const Usage& usage : passes.kinds) {
    std::set<int> gathered;
    for (const int at : gathers(layout, options, usage)) {
      const Bucket& bucket = layout.buckets[static_cast<std::size_t>(at)];
      const bool first = !usage.backward && gathered.insert(at).second;
      if (plus_plus.has_secondary() && !first)
        calls.add("hpz", Operation::all_gather, plan.value_dtype, plus_plus.hpz_partition_size,
                  secondary_elements(bucket, plus_plus.hpz_partition_size), usage.micro_batches,
                  "values");
      else if (plus_plus.quantized_weights)
        gather_codes(bucket, usage.micro_batches);
      else
        gather(bucket, layout.shard_elements(bucket), usage.micro_batches);
    }
  }
}

void add_quantized_gradients(Calls& calls, const GradientPlan& plan, const Layout& layout,
                             const StepOptions& options, const Bucket& bucket, std::int64_t times) {
  const std::int64_t code = gradient_code_bytes(layout, bucket);
  const int near = first_hop(options.plus_plus, plan.dp), hosts = plan.dp / near;
  const auto hop = [&](std::string_view group, int ranks, std::int64_t share) {
    calls.add(group, Operation::all_to_all, Dtype::uint8, ranks, share, times,
              "codes of gradients");
  };
  if (hosts == 1) return hop("dp", plan.dp, code);
  hop("qgz_near", near, hosts * code);
  hop("qgz_far", hosts, code);
}

void add_muon(Calls& calls, const GradientPlan& plan, const Layout& layout, const Muon& muon,
              bool sharded, int dp_rank) {
  const Dtype wide = collectives::gradient_dtype(plan.value_dtype);
  for (const Bucket& bucket : layout.buckets) {
    if (!bucket.matrices) continue;
    if (sharded)
      calls.add(name(bucket.over), Operation::all_gather, wide, bucket.shards,
                layout.shard_elements(bucket), 1, "directions of matrices");
    for (const int at : bucket.rows) {
      const GradientRow& row = plan.rows[static_cast<std::size_t>(at)];
      if (row.matrix.cut == MatrixRow::Cut::nothing ||
          !orthogonalizes(plan, layout, at, sharded, dp_rank))
        continue;
      for (const MuonPart& part : muon_parts(row, plan.tp)) {
        calls.add("tp", Operation::all_gather, Dtype::float64, plan.tp, 1, 1, "norms of matrices");
        calls.add("tp", Operation::all_reduce, wide, plan.tp,
                  square_elements(part.square_rows(), plan.tp), muon.num_ns_steps,
                  "squares of matrices");
      }
    }
  }
}

// Every rank of dp owns ranges of the same sizes.
StateCost cost_of_states(bool sharded, const GradientPlan& plan, const Layout& layout,
                         const Rule& rule, const StepOptions& options) {
  const auto on_device = [](const MatrixBytes& bytes) {
    StateCost cost;
    cost.device_optimizer = bytes.states;
    cost.device_buffers = bytes.buffers;
    return cost;
  };
  if (std::holds_alternative<Muon>(rule)) return on_device(muon_bytes(plan, layout, sharded));
  if (std::holds_alternative<Adafactor>(rule))
    return on_device(adafactor_bytes(plan, layout, sharded));
  if (std::holds_alternative<AdamW8Bit>(rule))
    return on_device(adamw_8bit_bytes(plan, layout, sharded));
  std::vector<std::int64_t> sizes;
  std::vector<bool> away;
  if (options.offload_param.offloads()) {
    for (const OwnedPart& part :
         owned_parts(layout, 0, value_slots(layout, options.offload_param))) {
      sizes.push_back(part.range.size());
      away.push_back(part.slot.has_value());
    }
  } else {
    for (const Range range : owned_ranges(layout, sharded, 0)) sizes.push_back(range.size());
  }
  return state_cost(rule, plan.value_dtype, sizes, options.offload_optimizer, away,
                    plan.gradient_dtype);
}

// Every use of a bucket in every micro-batch copies its shard to the device. The update writes the
// values that are in the file. It reads them first if they are their own master and the host keeps
// no copy of it.
OffloadTraffic traffic_of_values(const GradientPlan& plan, const Layout& layout, const Rule& rule,
                                 const StepOptions& options, const Passes& passes) {
  OffloadTraffic moved;
  const std::vector<ValueSlot> slots = value_slots(layout, options.offload_param);
  std::vector<std::uint64_t> times(layout.buckets.size());
  for (const Usage& usage : passes.kinds)
    for (const int bucket : gathers(layout, options, usage))
      times[static_cast<std::size_t>(bucket)] += static_cast<std::uint64_t>(usage.micro_batches);
  const bool read = options.offload_optimizer.device != OffloadDevice::cpu &&
                    !kept_states(rule, plan.value_dtype).master;
  for (const ValueSlot& slot : slots) {
    const std::uint64_t uses = times[static_cast<std::size_t>(slot.bucket)];
    moved.up += uses * bytes_of(slot.in_shard.size(), plan.value_dtype);
    if (slot.in_host) continue;
    const std::size_t bytes = file_bytes(slot, plan.value_dtype);
    moved.nvme_read += (uses + (slot.trained && read ? 1 : 0)) * bytes;
    if (slot.trained) moved.nvme_written += bytes;
  }
  return moved;
}

}  // namespace

bool Usage::reduces(const Bucket& bucket) const {
  const auto added = [&](int row) {
    return std::ranges::find(*gradients, row) != gradients->end();
  };
  return !bucket.frozen && (!gradients || std::ranges::any_of(bucket.rows, added));
}

std::int64_t Passes::reductions(const Bucket& bucket) const {
  std::int64_t times = 0;
  for (const Usage& usage : kinds) times += usage.reduces(bucket) ? usage.micro_batches : 0;
  return times;
}

Usage forward_and_backward(const std::vector<std::vector<int>>& parts, int micro_batches) {
  const std::vector<std::vector<int>> backward(parts.rbegin(), parts.rend());
  Usage usage{micro_batches, parts, backward, backward};
  usage.uses.insert(usage.uses.end(), parts.rbegin(), parts.rend());
  return usage;
}

std::vector<CollectiveCalls> expected_calls(int stage, const GradientPlan& plan,
                                            const Layout& layout, const StepOptions& options,
                                            const Passes& passes, const Selected& selected,
                                            int dp_rank) {
  const bool sharded = is_sharded(stage, plan), each_pass = stage >= 2;
  Calls calls;
  for (const Bucket& bucket : layout.buckets) {
    const std::int64_t times = each_pass ? passes.reductions(bucket) : 1;
    for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
      const Segment& segment = layout.segments[i];
      for (const Over over : segment.reduce) {
        if (over == Over::embedding && each_pass) continue;
        calls.add(name(over), Operation::all_reduce, plan.gradient_dtype, plan.size(over),
                  segment.range.size(), times,
                  over == Over::embedding ? "gradients of the tied embedding"
                                          : "gradients partial over tp");
      }
    }
    if (each_pass && is_tied(layout, bucket))
      calls.add(name(Over::embedding), Operation::all_reduce, plan.gradient_dtype,
                plan.size(Over::embedding), layout.shard_elements(bucket), 1,
                "gradients of the tied embedding");
  }
  const Dtype wire = options.communication_data_type.value_or(plan.gradient_dtype);
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen) continue;
    if (sums_momenta(options.rule)) {
      if (plan.dp > 1) add_compressed(calls, bucket, plan, layout, of_momenta(options), selected);
      continue;
    }
    if (compresses(plan, options)) {
      add_compressed(calls, bucket, plan, layout, options, selected);
      continue;
    }
    if (options.plus_plus.quantized_gradients) {
      add_quantized_gradients(calls, plan, layout, options, bucket, passes.reductions(bucket));
      continue;
    }
    const bool whole = all_reduces_gradients(stage, options);
    calls.add(name(bucket.over), whole ? Operation::all_reduce : Operation::reduce_scatter, wire,
              bucket.shards, whole ? bucket.range.size() : layout.shard_elements(bucket),
              each_pass ? passes.reductions(bucket) : 1, "gradients");
  }
  if (sharded) add_values(calls, stage, plan, layout, options, passes);
  const bool norm_sharded = norm_is_sharded(sharded, plan);
  const std::int64_t partials = norm_buffers(plan, layout, norm_sharded).partials;
  calls.add("tp", Operation::all_gather, Dtype::float64, plan.tp, partials, 1, "norm");
  calls.add("pp", Operation::all_gather, Dtype::float64, plan.pp, partials, 1, "norm");
  if (norm_sharded)
    calls.add("dp", Operation::all_gather, Dtype::float64, plan.dp, partials, 1, "norm");
  if (sums_momenta(options.rule))
    calls.add("dp", Operation::all_gather, Dtype::float64, plan.dp, 1, 1, "norms of replicas");
  if (std::holds_alternative<Adafactor>(options.rule)) {
    const Factors means = factors(plan, layout);
    const Dtype wide = collectives::gradient_dtype(plan.value_dtype);
    calls.add("tp", Operation::all_reduce, wide, plan.tp, means.summed_over_tp, 1,
              "means of rows and columns");
    if (sharded)
      calls.add("dp", Operation::all_reduce, wide, plan.dp, means.elements, 1,
                "means of rows and columns");
  }
  const bool one_bit_lamb = std::holds_alternative<OneBitLamb>(options.rule);
  if (one_bit_lamb && sums_momenta(options.rule))
    calls.add("tp", Operation::all_gather, Dtype::float64, plan.tp, one_bit_quotients(plan), 1,
              "quotients of variances");
  if (std::holds_alternative<Lamb>(options.rule) ||
      std::holds_alternative<Adafactor>(options.rule) || one_bit_lamb) {
    const std::int64_t sums = parameter_sums(plan, layout, sharded).own;
    calls.add("tp", Operation::all_gather, Dtype::float64, plan.tp, sums, 1, "norms of parameters");
    if (sharded)
      calls.add("dp", Operation::all_gather, Dtype::float64, plan.dp, sums, 1,
                "norms of parameters");
  }
  if (const Muon* const muon = std::get_if<Muon>(&options.rule))
    add_muon(calls, plan, layout, *muon, sharded, dp_rank);
  return calls.take();
}

std::string_view asked_algorithm(const CollectiveCalls& calls, const StepOptions& options) {
  return calls.operation == Operation::all_reduce       ? options.all_reduce
         : calls.operation == Operation::reduce_scatter ? options.reduce_scatter
         : calls.operation == Operation::broadcast || calls.operation == Operation::all_to_all ||
                 calls.what.starts_with("compressed")
             ? std::string_view()
             : std::string_view(options.all_gather);
}

std::string_view algorithm_of(const CollectiveCalls& calls, const StepOptions& options,
                              machine::Transport transport) {
  const std::string_view asked = asked_algorithm(calls, options);
  return asked.empty() ? collectives::usual_algorithm(calls, transport) : asked;
}

OffloadTraffic expected_offload_traffic(int stage, const GradientPlan& plan, const Layout& layout,
                                        const Rule& rule, const StepOptions& options,
                                        const Passes& passes) {
  return cost_of_states(is_sharded(stage, plan), plan, layout, rule, options).moved +
         traffic_of_values(plan, layout, rule, options, passes);
}

InFiles expected_in_files(int stage, const GradientPlan& plan, const Layout& layout,
                          const Rule& rule, const StepOptions& options) {
  InFiles bytes;
  for (const ValueSlot& slot : value_slots(layout, options.offload_param))
    if (!slot.in_host) bytes.values += file_bytes(slot, plan.value_dtype);
  bytes.states =
      cost_of_states(is_sharded(stage, plan), plan, layout, rule, options).moved.nvme_read;
  return bytes;
}

ExpectedMemory expected_memory(int stage, const GradientPlan& plan, const Layout& layout,
                               const Rule& rule, const StepOptions& options, const Passes& passes,
                               const Selected& selected) {
  const bool sharded = is_sharded(stage, plan);
  std::int64_t values = layout.value_elements;
  std::size_t gradients =
      bytes_of(stage >= 2 ? layout.own_elements : layout.elements, plan.gradient_dtype);
  if (stage >= 2) gradients += most_in_gradient_buckets(plan, layout, options, passes);
  if (stage == 3) {
    values = layout.own_value_elements + most_gathered(layout, options, passes);
    for (const Bucket& bucket : layout.buckets) {
      if (bucket.persistent) values += bucket.range.size();
      if (options.plus_plus.has_secondary())
        values += secondary_elements(bucket, options.plus_plus.hpz_partition_size);
      if (!bucket.persistent && options.offload_param.offloads())
        values -= layout.shard_elements(bucket);
    }
  }
  std::size_t on_wire = 0, staging = 0;
  const Dtype wire = options.communication_data_type.value_or(plan.gradient_dtype);
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen || plan.most_holders() == 1) continue;
    if (wire != plan.gradient_dtype && stage < 2 && !sums_momenta(rule))
      on_wire = std::max(on_wire, bytes_of(bucket.range.size(), wire));
    const std::int64_t shard = layout.shard_elements(bucket);
    const std::int64_t run = publish_run(shard, bucket.shards, options.allgather_bucket_size);
    const bool published = stage == 1 || stage == 2 || (stage == 3 && bucket.persistent);
    if (published && run < shard && !broadcasts_values(stage, options))
      staging = std::max(staging, bytes_of(run * bucket.shards, plan.value_dtype));
  }
  std::size_t codes = 0;
  if (plan.dp > 1 && options.plus_plus.quantized_weights) codes += quantized_weights_bytes(layout);
  if (plan.dp > 1 && options.plus_plus.quantized_gradients)
    codes += quantized_gradients_bytes(layout, first_hop(options.plus_plus, plan.dp));
  const NormBuffers norm = norm_buffers(plan, layout, norm_is_sharded(sharded, plan));
  const StateCost states = cost_of_states(sharded, plan, layout, rule, options);
  const ValueBytes away = value_bytes(value_slots(layout, options.offload_param), plan.value_dtype,
                                      options.offload_param);
  const bool one_bit = freeze_step(rule).has_value();
  const OneBitLambBytes lamb = std::holds_alternative<OneBitLamb>(rule)
                                   ? one_bit_lamb_bytes(plan, layout)
                                   : OneBitLambBytes();
  std::size_t compression = one_bit ? one_bit_bytes_held(layout, plan.dp) : 0;
  for (std::size_t i = 0; i < layout.segments.size() && compresses(plan, options); ++i)
    compression += collectives::bytes_held(options.gradient_compression.algorithm,
                                           call_of(i, plan, layout, options, selected));
  return {bytes_of(values, plan.value_dtype),
          gradients + on_wire,
          states.device_optimizer + lamb.states,
          states.device_buffers +
              bytes_of(norm.squares + norm.partials + norm.gathered, Dtype::float64) + staging +
              codes + (one_bit ? bytes_of(one_bit_norms(plan.dp), Dtype::float64) : 0) +
              lamb.buffers +
              (std::holds_alternative<Lamb>(rule) ? lamb_buffers(plan, layout, sharded) : 0),
          states.host_optimizer,
          states.host_buffers + away.buffers,
          away.host,
          compression};
}

}  // namespace zero
