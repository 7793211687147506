#pragma once
// All parameters of a rank in one flat value buffer and one flat gradient buffer, so that a step is
// a few long operations, and ZeRO's shards are equal ranges whatever the parameters' sizes.
//
// Layout. Parameters with the same extra reductions (embedding, tp) and the same number of replicas
// lie together, in a segment: one all-reduce sums a whole segment, one kernel adds up its squares.
// Segments follow each other by falling need of reduction, and parameters keep their order inside
// one, except tied ones, which lie by name so that the first and the last stage agree.
//
// Padding. Every parameter starts at a multiple of 64 elements (as in Megatron-LM's distributed
// optimizer; its views are aligned for vectors). A segment with extra reductions ends at a multiple
// of 64 times the least common multiple of the sizes of its groups; the whole ends at a multiple of
// 64 * dp. So every collective cuts its buffer into equal parts, and its volume is the closed
// formula, exactly. Padding is zero, has zero gradients and no weight decay, and every update
// leaves it zero.

#include <cstdint>
#include <vector>

#include "collectives/placement.h"
#include "machine/device/tensor.h"
#include "zero/gradient_plan.h"

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

struct Layout {
  std::int64_t elements = 0;          // padded, a multiple of 64 * dp
  std::vector<std::int64_t> offsets;  // of each row of the plan
  std::vector<Segment> segments;
  int shards = 1;  // dp
  Range shard(int index) const {
    return {elements / shards * index, elements / shards * (index + 1)};
  }
};
Layout layout(const GradientPlan& plan);

// Owns the two buffers and makes every parameter's value and gradient a view of them. A value that
// is there already is copied in (its own memory is freed when its last view is gone: until then
// both are held, so reset the ledger's peaks afterwards); one that is not starts at zero. Gradients
// start at zero. Categories: parameters and gradients, elements times the size of the plan's
// dtypes.
class FlatStates {
 public:
  // The parameters are those of the plan, in its order. Throws std::invalid_argument naming a
  // parameter whose value has another dtype or shape.
  FlatStates(machine::Device& device, const GradientPlan& plan,
             const std::vector<collectives::Parameter*>& parameters);

  const Layout& layout() const { return layout_; }
  machine::Device& device() const { return device_; }
  const machine::Tensor& values() const { return values_; }        // [elements]
  const machine::Tensor& gradients() const { return gradients_; }  // [elements]
  machine::Tensor values(Range range) const { return values_.slice(range.begin, {range.size()}); }
  machine::Tensor gradients(Range range) const {
    return gradients_.slice(range.begin, {range.size()});
  }
  // One byte an element: whether weight decay applies.
  std::vector<std::uint8_t> decay_mask(const GradientPlan& plan, Range range) const;

 private:
  machine::Device& device_;
  Layout layout_;
  machine::Tensor values_, gradients_;
};

}  // namespace zero
