#pragma once
// Where every parameter lies in the flat buffers: in buckets, which are what is reduced at once and
// what each rank of dp owns an equal share of.
//
// Buckets. Parameters are taken in the order in which backward makes them ready, the last of the
// plan first (tied ones before all others, by name, so that the first and the last stage cut them
// alike), and a bucket is closed when the next would take it past reduce_bucket_size elements; a
// parameter that is larger has a bucket of its own (DeepSpeed's reduce_bucket_size). Where parts
// are given, no bucket holds parameters of two parts, so that a part can be gathered by itself
// (stage 3). Small parameters (persistence_threshold) have buckets apart from the parts'; so do
// frozen ones, which lie behind all others. Buckets are in the order in which they get complete.
//
// Inside a bucket, parameters with the same extra reductions (embedding, tp) and the same number of
// replicas lie together, in a segment: one all-reduce sums a whole segment, one kernel adds up its
// squares. Segments follow each other by falling need of reduction, and parameters keep the plan's
// order inside one, except tied ones, which lie by name.
//
// Padding. Every parameter starts at a multiple of 64 elements (as in Megatron-LM's distributed
// optimizer; its views are aligned for vectors). A segment with extra reductions ends at a multiple
// of 64 times the least common multiple of the sizes of its groups; a bucket ends at a multiple of
// 64 * dp. So every collective cuts its buffer into equal parts, and its volume is the closed
// formula, exactly. Padding is zero, has zero gradients and no weight decay, and every update
// leaves it zero.

#include <cstdint>
#include <vector>

#include "zero/states/gradient_plan.h"

namespace zero {

inline constexpr std::int64_t alignment = 64;  // elements

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
Range intersection(Range a, Range b);  // of size 0 when they don't meet

struct Segment {
  std::vector<Over> reduce;  // before dp
  int replicas = 1;
  Range range;  // with its padding
};

struct Bucket {
  Range range;                                       // a multiple of 64 * dp
  std::vector<int> rows;                             // of the plan, in its order
  std::size_t segments_begin = 0, segments_end = 0;  // of Layout::segments; none where frozen
  bool persistent = false;                           // stage 3 never parts its values
  bool frozen = false;
};

struct LayoutOptions {
  std::int64_t reduce_bucket_size = 500'000'000;  // elements, without padding
  std::vector<int> parts = {};  // of each row of the plan; empty: parts do not matter
  // Where parts are given: parameters of so many elements or fewer are persistent (DeepSpeed's
  // stage3_param_persistence_threshold).
  std::int64_t persistence_threshold = 100'000;
};

struct Layout {
  std::int64_t elements = 0;          // of what is trained, padded, a multiple of 64 * dp
  std::int64_t value_elements = 0;    // with frozen parameters
  std::vector<std::int64_t> offsets;  // of each row of the plan
  std::vector<int> bucket_of;         // each row of the plan
  std::vector<Segment> segments;
  std::vector<Bucket> buckets;
  int shards = 1;  // dp

  std::int64_t shard_elements(const Bucket& bucket) const { return bucket.range.size() / shards; }
  // Of a bucket, in the flat buffers.
  Range shard(const Bucket& bucket, int index) const {
    const std::int64_t begin = bucket.range.begin + shard_elements(bucket) * index;
    return {begin, begin + shard_elements(bucket)};
  }
  // The same in a buffer that holds one rank's shards alone, one behind the other.
  Range in_shards(const Bucket& bucket) const {
    return {bucket.range.begin / shards, bucket.range.end / shards};
  }
};
// What a rank of dp updates: its shard of each trained bucket, or, where nothing is sharded or
// trained, all as one range.
std::vector<Range> owned_ranges(const Layout& layout, bool sharded, int dp_rank);

// Throws std::invalid_argument for a bucket size that is not positive and for parts that are not
// one for each row.
Layout layout(const GradientPlan& plan, const LayoutOptions& options = {});

}  // namespace zero
