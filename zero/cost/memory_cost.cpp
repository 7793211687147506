#include "zero/cost/memory_cost.h"

#include <algorithm>
#include <set>
#include <utility>

namespace zero {
namespace {

// The bytes of an element: its gradient, and its copy on the wire if that has another dtype.
struct Widths {
  std::int64_t gradient = 0, wire = 0;
};
Widths widths(const GradientPlan& plan, const StepOptions& options) {
  const Dtype wire = options.communication_data_type.value_or(plan.gradient_dtype);
  const bool converts = plan.most_holders() > 1 && wire != plan.gradient_dtype;
  return {static_cast<std::int64_t>(size_of(plan.gradient_dtype)),
          converts ? static_cast<std::int64_t>(size_of(wire)) : 0};
}

// The peak bytes in one pass, and the elements of its last bucket.
struct InPass {
  std::int64_t most = 0, last = 0;
};

// previous: the last bucket of the previous pass that reduced any. It may still be under way.
//
// Times are positions in backward. A bucket begins with the first of its rows. It is reduced when
// the last of its rows is ready and all earlier buckets are reduced. A bucket with a row that is
// never ready waits until the end of backward, which reduces the remaining buckets one by one.
InPass in_gradient_buckets(const GradientPlan& plan, const Layout& layout,
                           const StepOptions& options, const Usage& usage, std::int64_t previous) {
  const auto end = usage.ready.size();
  const auto [gradient, wire] = widths(plan, options);
  const std::int64_t sent = gradient + wire;
  std::vector<std::size_t> begins(plan.rows.size(), end + 1), ready(plan.rows.size(), end);
  for (std::size_t at = 0; at < end; ++at) {
    for (const int row : usage.ready[at]) ready[static_cast<std::size_t>(row)] = at;
    for (const int row : usage.begun[at]) {
      std::size_t& first = begins[static_cast<std::size_t>(row)];
      first = std::min(first, at);
    }
  }

  struct Life {
    std::size_t goes = 0;
    std::int64_t size = 0;
  };
  std::vector<Life> lives;
  std::vector<const Bucket*> buckets;
  std::size_t last = 0;
  for (const Bucket& bucket : layout.buckets) {
    if (!usage.reduces(bucket) || bucket.range.size() == 0) continue;
    for (const int row : bucket.rows) last = std::max(last, ready[static_cast<std::size_t>(row)]);
    lives.push_back({last, bucket.range.size()});
    buckets.push_back(&bucket);
  }
  // Returns the bytes that bucket i holds after the gradients of `at` are begun, until it is
  // reduced.
  const auto begun = [&](std::size_t i, std::size_t at) {
    std::int64_t elements = 0;
    for (const int row : buckets[i]->rows) {
      if (begins[static_cast<std::size_t>(row)] > at) continue;
      if (options.contiguous_gradients) return lives[i].size * gradient;
      elements += plan.rows[static_cast<std::size_t>(row)].elements;
    }
    return elements * gradient;
  };
  std::int64_t most = 0;
  for (std::size_t at = 0; at <= end; ++at) {
    // While the gradients of `at` are computed, memory holds the begun buckets that are not reduced
    // and, with overlap_comm, the last bucket that was sent.
    std::int64_t held = 0;
    std::size_t first = 0;
    while (first < lives.size() && lives[first].goes < at) ++first;
    for (std::size_t i = first; i < lives.size(); ++i) held += begun(i, at);
    std::int64_t under_way = 0;
    if (options.overlap_comm && first > 0)
      under_way = lives[first - 1].size * sent;
    else if (options.overlap_comm)
      under_way = previous * sent;
    most = std::max(most, held + under_way);
    // Then the complete buckets are reduced, one after the other. A bucket that is not begun, or
    // not contiguous, gets its buffer after the previous bucket is freed. Its copy on the wire
    // follows.
    for (std::size_t i = first; i < lives.size() && lives[i].goes == at; ++i) {
      const bool whole_already = options.contiguous_gradients && begun(i, at) > 0;
      most = std::max(most, held + (whole_already ? 0 : lives[i].size * gradient));
      held -= begun(i, at);
      most = std::max(most, held + lives[i].size * sent);
      const bool more = i + 1 < lives.size() && lives[i + 1].goes == at;
      if (options.overlap_comm && !more) most = std::max(most, held + lives[i].size * sent);
    }
  }
  return {most, lives.empty() ? 0 : lives.back().size};
}

std::int64_t most_gathered(const Layout& layout, const StepOptions& options, const Usage& usage) {
  const Uses uses = bucket_uses(layout, usage.uses);
  std::vector<std::int64_t> elements;
  for (const Bucket& bucket : layout.buckets) elements.push_back(bucket.range.size());
  const Uses stay = kept(uses, elements, options.stage3_max_reuse_distance);
  const auto ahead = prefetches(uses, elements, options.stage3_prefetch_bucket_size,
                                options.stage3_max_live_parameters, stay);
  std::set<int> live;
  std::int64_t most = 0;
  for (std::size_t now = 0; now < uses.size(); ++now) {
    live.insert(uses[now].begin(), uses[now].end());
    live.insert(ahead[now].begin(), ahead[now].end());
    std::int64_t held = 0;
    for (const int bucket : live) held += elements[static_cast<std::size_t>(bucket)];
    most = std::max(most, held);
    for (const int bucket : uses[now])
      if (std::ranges::find(stay[now], bucket) == stay[now].end()) live.erase(bucket);
  }
  return most;
}

}  // namespace

std::size_t most_in_gradient_buckets(const GradientPlan& plan, const Layout& layout,
                                     const StepOptions& options, const Passes& passes) {
  std::int64_t most = 0, previous = 0;
  std::set<std::pair<std::size_t, std::int64_t>> known;
  std::vector<std::int64_t> last(passes.kinds.size());
  for (const std::size_t kind : passes.order) {
    const Usage& usage = passes.kinds[kind];
    if (usage.gradients && usage.gradients->empty()) continue;
    if (known.emplace(kind, previous).second) {
      const InPass peak = in_gradient_buckets(plan, layout, options, usage, previous);
      most = std::max(most, peak.most);
      last[kind] = peak.last;
    }
    previous = last[kind];
  }
  return static_cast<std::size_t>(most);
}

std::int64_t most_gathered(const Layout& layout, const StepOptions& options, const Passes& passes) {
  std::int64_t most = 0;
  for (const Usage& usage : passes.kinds)
    most = std::max(most, most_gathered(layout, options, usage));
  return most;
}

}  // namespace zero
