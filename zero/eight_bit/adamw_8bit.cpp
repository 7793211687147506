#include "zero/eight_bit/adamw_8bit.h"

#include <variant>

#include "machine/base/error.h"
#include "machine/base/reject.h"

namespace zero {
namespace {

Rule rule_of(const AdamW8Bit& rule, bool coded) { return coded ? Rule(rule) : Rule(rule.adamw()); }

void check_blocks(const Bucket& bucket, const Layout& layout, Range range) {
  for (const std::int64_t at : {range.begin, range.end})
    SHARDMARK_CHECK(at % machine::moment_block, ==, std::int64_t{0});
  for (const int row : bucket.rows)
    SHARDMARK_CHECK(layout.offsets[static_cast<std::size_t>(row)] % machine::moment_block, ==,
                    std::int64_t{0});
}

}  // namespace

void check_adamw_8bit(const Rule& rule, const MatrixLimits& limits) {
  if (!std::holds_alternative<AdamW8Bit>(rule)) return;
  if (limits.value_dtype == Dtype::float64)
    machine::reject("optimizer adamw_8bit requires dtype float, bfloat16 or half (got double)");
  if (limits.offloads)
    machine::reject(
        "optimizer adamw_8bit requires offload_optimizer and offload_param none, because offload "
        "updates pieces that cut blocks of codes");
}

MatrixBytes adamw_8bit_bytes(const GradientPlan& plan, const Layout& layout, bool sharded) {
  MatrixBytes bytes;
  for (const Bucket& bucket : layout.buckets) {
    if (bucket.frozen) continue;
    const std::int64_t size = sharded ? layout.shard_elements(bucket) : bucket.range.size();
    const auto elements = static_cast<std::size_t>(size);
    const Rule rule = rule_of({}, bucket.matrices);
    bytes.states +=
        elements * optimizer_bytes_per_element(rule, plan.value_dtype) + scale_bytes(rule, size);
    bytes.buffers += elements * mask_bytes_per_element(rule);
  }
  return bytes;
}

AdamW8BitOptimizer::AdamW8BitOptimizer(const Rule& rule, const Layout& layout,
                                       const std::vector<OwnedRange>& owned)
    : OwnedOptimizer(rule), num_owned_(owned.size()) {
  for (std::size_t i = 0; i < owned.size(); ++i)
    for (const Bucket& bucket : layout.buckets) {
      const Range range = intersection(owned[i].range, bucket.range);
      if (bucket.frozen || range.size() == 0) continue;
      if (bucket.matrices) check_blocks(bucket, layout, range);
      const std::int64_t first = range.begin - owned[i].range.begin;
      const auto mask = owned[i].decay_mask.begin() + first;
      runs_.push_back({range, i, first,
                       Optimizer(rule_of(std::get<AdamW8Bit>(rule), bucket.matrices),
                                 owned[i].values.slice(first, {range.size()}),
                                 std::vector<std::uint8_t>(mask, mask + range.size()))});
    }
}

// The last range first, because backward of the next step needs its values last.
void AdamW8BitOptimizer::update(const std::vector<Tensor>& gradients, double gradient_scale,
                                const Updated& updated) {
  SHARDMARK_CHECK(gradients.size(), ==, num_owned_);
  ++steps_;
  std::size_t at = runs_.size();
  for (std::size_t i = num_owned_; i-- > 0;) {
    for (; at > 0 && runs_[at - 1].owned == i; --at) {
      Run& run = runs_[at - 1];
      const bool coded = std::holds_alternative<AdamW8Bit>(run.optimizer.rule());
      run.optimizer.rule() = rule_of(std::get<AdamW8Bit>(rule_), coded);
      run.optimizer.update(gradients[i].slice(run.first, {run.range.size()}), gradient_scale);
    }
    updated(i);
  }
}

void AdamW8BitOptimizer::values_changed() {
  for (Run& run : runs_) run.optimizer.values_changed();
}

void AdamW8BitOptimizer::set_steps(std::int64_t steps) {
  OwnedOptimizer::set_steps(steps);
  for (Run& run : runs_) run.optimizer.set_steps(steps);
}

void AdamW8BitOptimizer::visit(bool /*writes*/, const Visit& call) {
  for (const Run& run : runs_) call(run.range, run.optimizer.states());
}

}  // namespace zero
