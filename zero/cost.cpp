#include "zero/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "machine/device/error.h"
#include "zero/step.h"

namespace zero {
namespace {

using machine::Dtype;
using machine::Operation;

bool is_sharded(int stage, const GradientPlan& plan) {
  if (stage < 0 || stage >= num_stages) {
    throw std::invalid_argument(
        fmt::format("ZeRO stage {}: there are the stages 0 to {}", stage, num_stages - 1));
  }
  return stage >= 1 && plan.dp > 1;
}

std::uint64_t bytes_of(std::int64_t elements, Dtype dtype) {
  return static_cast<std::uint64_t>(elements) * machine::size_of(dtype);
}

class Rows {
 public:
  explicit Rows(const SentElements& sent) : sent_(sent) {}

  void add(std::string_view group, Operation operation, Dtype dtype, int ranks, std::int64_t count,
           std::string_view what) {
    const std::uint64_t bytes =
        ranks > 1 ? bytes_of(sent_(operation, dtype, ranks, count), dtype) : 0;
    if (bytes == 0) return;
    for (TrafficRow& row : rows_) {
      if (row.group != group || row.label != machine::TrafficLabel{operation, dtype}) continue;
      row.bytes_sent += bytes;
      if (row.what.find(what) == std::string::npos) row.what += fmt::format(" and {}", what);
      return;
    }
    rows_.push_back({std::string(group), {operation, dtype}, bytes, std::string(what)});
  }
  std::vector<TrafficRow> take() { return std::move(rows_); }

 private:
  const SentElements& sent_;
  std::vector<TrafficRow> rows_;
};

}  // namespace

std::int64_t bandwidth_optimal(Operation operation, Dtype, int ranks, std::int64_t count) {
  if (operation != Operation::all_reduce) return (ranks - 1) * count;
  SHARDMARK_CHECK(count % ranks, ==, 0);
  return 2 * (ranks - 1) * (count / ranks);
}

SentElements as_run(const StepOptions& options, machine::Transport transport) {
  return [=](Operation operation, Dtype dtype, int ranks, std::int64_t count) {
    std::string_view algorithm = operation == Operation::all_reduce       ? options.all_reduce
                                 : operation == Operation::reduce_scatter ? options.reduce_scatter
                                                                          : options.all_gather;
    if (algorithm == collectives::library) return bandwidth_optimal(operation, dtype, ranks, count);
    const std::int64_t in = operation == Operation::reduce_scatter ? count * ranks : count;
    if (algorithm.empty()) {
      algorithm = collectives::default_algorithm(operation, transport, bytes_of(in, dtype), ranks);
    }
    // The buffers divide evenly, so every rank sends what the first does.
    return collectives::find_algorithm(operation, algorithm).volume({0, ranks}, count).sent;
  };
}

std::vector<TrafficRow> expected_traffic(int stage, const GradientPlan& plan, const Layout& layout,
                                         const SentElements& sent) {
  const bool sharded = is_sharded(stage, plan);
  Rows rows(sent);
  for (const Segment& segment : layout.segments) {
    for (const Over over : segment.reduce) {
      rows.add(name(over), Operation::all_reduce, plan.gradient_dtype, plan.size(over),
               segment.range.size(),
               over == Over::embedding ? "gradients of the tied embedding"
                                       : "gradients partial over tp");
    }
  }
  if (layout.elements > 0) {
    if (sharded) {
      const std::int64_t share = layout.elements / plan.dp;
      rows.add("dp", Operation::reduce_scatter, plan.gradient_dtype, plan.dp, share, "gradients");
      rows.add("dp", Operation::all_gather, plan.value_dtype, plan.dp, share, "values");
    } else {
      rows.add("dp", Operation::all_reduce, plan.gradient_dtype, plan.dp, layout.elements,
               "gradients");
    }
  }
  const std::int64_t partials = norm_buffers(plan, layout, sharded).partials;
  rows.add("tp", Operation::all_gather, Dtype::float64, plan.tp, partials, "norm");
  rows.add("pp", Operation::all_gather, Dtype::float64, plan.pp, partials, "norm");
  if (sharded) rows.add("dp", Operation::all_gather, Dtype::float64, plan.dp, partials, "norm");
  return rows.take();
}

ExpectedMemory expected_memory(int stage, const GradientPlan& plan, const Layout& layout,
                               const Rule& rule) {
  const bool sharded = is_sharded(stage, plan);
  const auto owned =
      static_cast<std::size_t>(sharded ? layout.elements / plan.dp : layout.elements);
  const NormBuffers norm = norm_buffers(plan, layout, sharded);
  return {bytes_of(layout.elements, plan.value_dtype),
          bytes_of(layout.elements, plan.gradient_dtype),
          owned * optimizer_bytes_per_element(rule, plan.value_dtype),
          owned * mask_bytes_per_element(rule) +
              bytes_of(norm.squares + norm.partials + norm.gathered, Dtype::float64)};
}

NormBuffers norm_buffers(const GradientPlan& plan, const Layout& layout, bool sharded) {
  const std::int64_t shards = sharded ? 1 : plan.dp;
  const int largest = std::max({plan.tp, plan.pp, sharded ? plan.dp : 1});
  return {shards * static_cast<std::int64_t>(layout.segments.size()), shards,
          largest > 1 ? shards * largest : 0};
}

}  // namespace zero
