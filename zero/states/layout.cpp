#include "zero/states/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "machine/base/reject.h"

namespace zero {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::vector<Over> before_dp(const GradientRow& row) {
  std::vector<Over> extra = row.reduce;
  std::erase(extra, Over::dp);
  std::erase(extra, Over::edp);
  return extra;
}

bool is_tied(const GradientRow& row) {
  return std::find(row.reduce.begin(), row.reduce.end(), Over::embedding) != row.reduce.end();
}

// Orders tied rows first, partial rows next and all others last, and equal ones by replicas.
bool lies_before(const GradientRow& a, const GradientRow& b) {
  const auto extra_a = before_dp(a), extra_b = before_dp(b);
  if (extra_a.empty() != extra_b.empty()) return extra_b.empty();
  if (extra_a != extra_b) return extra_a < extra_b;
  if (a.replicas != b.replicas) return a.replicas > b.replicas;
  return is_tied(a) && a.parameter < b.parameter;
}

std::vector<int> ready_order(const GradientPlan& plan) {
  std::vector<int> order(plan.rows.size());
  std::iota(order.rbegin(), order.rend(), 0);
  const auto row = [&](int index) -> const GradientRow& {
    return plan.rows[static_cast<std::size_t>(index)];
  };
  const auto rest = std::stable_partition(order.begin(), order.end(),
                                          [&](int index) { return is_tied(row(index)); });
  std::sort(order.begin(), rest, [&](int a, int b) { return row(a).parameter < row(b).parameter; });
  return order;
}

// By row: whether its parameter is persistent.
std::vector<bool> persistent_rows(const GradientPlan& plan, const LayoutOptions& options) {
  std::vector<bool> persistent(plan.rows.size());
  std::int64_t left = options.model_persistence_threshold;
  for (std::size_t i = 0; i < plan.rows.size() && !options.parts.empty(); ++i) {
    const std::int64_t elements = plan.rows[i].elements;
    persistent[i] = elements <= std::min(options.persistence_threshold, left);
    if (persistent[i]) left -= elements;
  }
  return persistent;
}

std::vector<Bucket> cut(const GradientPlan& plan, const LayoutOptions& options) {
  struct Open {
    Bucket bucket;
    std::int64_t elements = 0;
    int part = 0, chunk = 0, closed_at = 0;
    bool tied = false;
  };
  // By frozen, persistent, expert and matrix.
  std::map<std::tuple<bool, bool, bool, bool>, Open> open;
  std::vector<Open> closed;
  const std::vector<bool> persistent_row = persistent_rows(plan, options);
  int position = 0;
  for (const int index : ready_order(plan)) {
    const auto at = static_cast<std::size_t>(index);
    const GradientRow& row = plan.rows[at];
    // A tied matrix has its own bucket, so both stages add up its squares by the same shards.
    const bool by_parts = !options.parts.empty(),
               tied = (by_parts || row.is_matrix()) && is_tied(row);
    const int part = by_parts ? options.parts[at] : 0;
    const int chunk = options.chunks.empty() ? 0 : options.chunks[at];
    const bool persistent = persistent_row[at];
    Open& current = open[{row.frozen, persistent, row.expert, row.is_matrix()}];
    const bool leaves_part =
        (!persistent && part != current.part) || chunk != current.chunk || tied != current.tied;
    const bool full =
        current.elements > 0 && current.elements + row.elements > options.reduce_bucket_size;
    if (!current.bucket.rows.empty() && (leaves_part || full)) {
      closed.push_back(std::move(current));
      current = {};
    }
    current.bucket.frozen = row.frozen;
    current.bucket.persistent = persistent;
    current.bucket.matrices = row.is_matrix();
    current.bucket.over = row.expert ? Over::edp : Over::dp;
    current.bucket.shards = plan.size(current.bucket.over);
    current.bucket.rows.push_back(index);
    current.elements += row.elements;
    current.part = part;
    current.chunk = chunk;
    current.tied = tied;
    current.closed_at = position++;
  }
  for (auto& [kind, last] : open) closed.push_back(std::move(last));
  std::sort(closed.begin(), closed.end(), [](const Open& a, const Open& b) {
    return std::pair(a.bucket.frozen, a.closed_at) < std::pair(b.bucket.frozen, b.closed_at);
  });
  std::vector<Bucket> buckets;
  for (Open& each : closed) {
    std::sort(each.bucket.rows.begin(), each.bucket.rows.end());
    buckets.push_back(std::move(each.bucket));
  }
  return buckets;
}

// Places the bucket's rows from `begin` and returns the end of its padding.
std::int64_t place(const GradientPlan& plan, std::int64_t alignment, Bucket& bucket,
                   std::int64_t begin, Layout& result) {
  std::vector<int> order = bucket.rows;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return lies_before(plan.rows[static_cast<std::size_t>(a)],
                       plan.rows[static_cast<std::size_t>(b)]);
  });
  std::int64_t end = begin;
  bucket.segments_begin = result.segments.size();
  const auto close_segment = [&] {
    if (result.segments.size() == bucket.segments_begin) return;
    Segment& segment = result.segments.back();
    std::int64_t parts = 1;
    for (const Over over : segment.reduce) parts = std::lcm(parts, std::int64_t{plan.size(over)});
    end = segment.range.begin + round_up(end - segment.range.begin, alignment * parts);
    segment.range.end = end;
  };
  for (const int index : order) {
    const GradientRow& row = plan.rows[static_cast<std::size_t>(index)];
    const std::vector<Over> extra = before_dp(row);
    const bool first = result.segments.size() == bucket.segments_begin;
    if (!row.frozen && (first || result.segments.back().reduce != extra ||
                        result.segments.back().replicas != row.replicas)) {
      close_segment();
      result.segments.push_back({extra, row.replicas, {end, end}});
    }
    result.offsets[static_cast<std::size_t>(index)] = end;
    end += round_up(row.elements, alignment);
  }
  close_segment();
  bucket.segments_end = result.segments.size();
  return begin + round_up(end - begin, alignment * bucket.shards);
}

}  // namespace

Range intersection(Range a, Range b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

bool is_tied(const Layout& layout, const Bucket& bucket) {
  for (std::size_t i = bucket.segments_begin; i < bucket.segments_end; ++i) {
    const std::vector<Over>& reduce = layout.segments[i].reduce;
    if (std::find(reduce.begin(), reduce.end(), Over::embedding) != reduce.end()) return true;
  }
  return false;
}

std::vector<Range> owned_ranges(const Layout& layout, bool sharded, int dp_rank) {
  std::vector<Range> owned;
  for (const Bucket& bucket : layout.buckets)
    if (sharded && !bucket.frozen) owned.push_back(layout.shard(bucket, dp_rank));
  if (owned.empty()) owned.push_back({0, layout.elements});
  return owned;
}

Layout layout(const GradientPlan& plan, const LayoutOptions& options) {
  machine::check_positive("reduce_bucket_size", options.reduce_bucket_size);
  if (!options.parts.empty() && options.parts.size() != plan.rows.size())
    machine::reject("parts has {} entries; expected {}, one for each parameter",
                    options.parts.size(), plan.rows.size());
  if (!options.chunks.empty() && options.chunks.size() != plan.rows.size())
    machine::reject("chunks has {} entries; expected {}, one for each parameter",
                    options.chunks.size(), plan.rows.size());
  Layout result;
  result.shards = plan.dp;
  result.tp = plan.tp;
  result.tp_rank = plan.tp_rank;
  result.offsets.resize(plan.rows.size());
  result.bucket_of.resize(plan.rows.size());
  result.buckets = cut(plan, options);
  for (std::size_t i = 0; i < result.buckets.size(); ++i) {
    Bucket& bucket = result.buckets[i];
    for (const int row : bucket.rows)
      result.bucket_of[static_cast<std::size_t>(row)] = static_cast<int>(i);
    const std::int64_t begin = result.value_elements;
    result.value_elements = place(plan, options.alignment, bucket, begin, result);
    bucket.range = {begin, result.value_elements};
    bucket.shards_begin = result.own_value_elements;
    result.own_value_elements += result.shard_elements(bucket);
    if (bucket.frozen) continue;
    result.elements = result.value_elements;
    result.own_elements = result.own_value_elements;
  }
  return result;
}

}  // namespace zero
