#pragma once
// The place of every parameter in the flat buffers: in buckets, which are reduced together. Each
// rank of dp owns an equal shard of every bucket; of a bucket of experts, each rank of edp.
//
// Buckets. Parameters are taken in the order in which backward completes them, the last of the plan
// first. Tied ones come before all others, by name, so that the first and the last stage split them
// in the same way. A bucket is closed when the next parameter would exceed reduce_bucket_size
// elements; a larger parameter has its own bucket (DeepSpeed's reduce_bucket_size). If parts are
// given, no bucket holds parameters of two parts, so that a part can be gathered separately (stage
// 3), and none holds tied and other parameters, so that both stages shard the tied ones alike.
// Small parameters (persistence_threshold) have separate buckets; so do experts, matrices of Muon
// and Adafactor, parameters of 8-bit AdamW's codes, and frozen ones, which come last. Buckets are
// in the order in which they become complete.
//
// Inside a bucket, parameters with the same extra reductions (embedding, tp) and the same number of
// replicas form a segment: one all-reduce sums a whole segment, one kernel adds up its squares.
// Segments with more reductions come first. Parameters keep the plan's order inside a segment,
// except tied ones, which are sorted by name.
//
// Padding. Every parameter starts at a multiple of 64 elements (as in Megatron-LM's distributed
// optimizer; its views are aligned for vectors). A segment with extra reductions ends at a multiple
// of 64 times the least common multiple of the sizes of its groups; a bucket ends at a multiple of
// 64 * dp, or of 64 * edp with experts. So every collective splits its buffer into equal parts, and
// its volume is the closed formula, exactly. Padding is zero, has zero gradients and no weight
// decay, and every update leaves it zero. 8-bit AdamW has multiples of 256 in place of 64: then no
// shard cuts a block of codes, and blocks count from the first element of their parameter.

#include <cstdint>
#include <limits>
#include <vector>

#include "zero/states/gradient_plan.h"

namespace zero {

inline constexpr std::int64_t alignment = 64;  // elements

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
Range intersection(Range a, Range b);  // of size 0 if they do not overlap

struct Segment {
  std::vector<Over> reduce;  // before dp
  int replicas = 1;
  Range range;  // with its padding
};

struct Bucket {
  Range range;                                       // a multiple of 64 * dp
  std::vector<int> rows;                             // of the plan, in its order
  std::size_t segments_begin = 0, segments_end = 0;  // of Layout::segments; empty if frozen
  bool persistent = false;                           // stage 3 does not shard its values
  bool frozen = false;
  bool matrices = false;          // of GradientRow::is_matrix
  Over over = Over::dp;           // or edp: the ranks that hold and reduce it
  int shards = 1;                 // the number of these ranks
  std::int64_t shards_begin = 0;  // of this bucket in a buffer of one rank's shards
};

struct LayoutOptions {
  std::int64_t reduce_bucket_size = 500'000'000;  // elements, without padding
  std::vector<int> parts = {};  // of each row of the plan; empty: parts do not matter
  // If parts are given, parameters of at most this many elements are persistent (DeepSpeed's
  // stage3_param_persistence_threshold).
  std::int64_t persistence_threshold = 100'000;
  // The chunk of each row, if parts are given: every chunk of a pipeline has its own buckets.
  // Empty: one chunk.
  std::vector<int> chunks = {};
  // The most elements that are persistent, in the order of the plan (DeepSpeed's
  // stage3_model_persistence_threshold). A parameter that does not fit is sharded.
  std::int64_t model_persistence_threshold = std::numeric_limits<std::int64_t>::max();
  std::int64_t alignment = zero::alignment;  // of parameters and shards
};

struct Layout {
  std::int64_t elements = 0;          // of trained parameters, padded, a multiple of 64 * dp
  std::int64_t value_elements = 0;    // with frozen parameters
  std::vector<std::int64_t> offsets;  // by row of the plan
  std::vector<int> bucket_of;         // by row of the plan
  std::vector<Segment> segments;
  std::vector<Bucket> buckets;
  int shards = 1;                                         // dp
  int tp = 1, tp_rank = 0;                                // of the plan
  std::int64_t own_elements = 0, own_value_elements = 0;  // of one rank's shards

  std::int64_t shard_elements(const Bucket& bucket) const {
    return bucket.range.size() / bucket.shards;
  }
  // Returns the shard of a rank of dp at this rank's place in tp. Neighbours of a stage have
  // different parts of experts.
  int index(const Bucket& bucket, int dp_rank) const {
    if (bucket.over == Over::dp) return dp_rank;
    return (dp_rank * tp + tp_rank) / (shards * tp / bucket.shards);
  }
  // Returns the shard of a bucket in the flat buffers.
  Range shard(const Bucket& bucket, int dp_rank) const {
    const std::int64_t begin = bucket.range.begin + shard_elements(bucket) * index(bucket, dp_rank);
    return {begin, begin + shard_elements(bucket)};
  }
  // Returns the shard's range in a buffer that holds only one rank's shards, one after the other.
  Range in_shards(const Bucket& bucket) const {
    return {bucket.shards_begin, bucket.shards_begin + shard_elements(bucket)};
  }
};
// Returns whether the gradients of a bucket's parameters are summed over the embedding group.
bool is_tied(const Layout& layout, const Bucket& bucket);
// Returns the ranges that a rank of dp updates: its shard of each trained bucket, or one range of
// all elements if nothing is sharded or trained.
std::vector<Range> owned_ranges(const Layout& layout, bool sharded, int dp_rank);

// Throws std::invalid_argument for a bucket size that is not positive and for parts without exactly
// one entry for each row.
Layout layout(const GradientPlan& plan, const LayoutOptions& options = {});

}  // namespace zero
