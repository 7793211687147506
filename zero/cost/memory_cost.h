#pragma once
// The parts of a step's memory that come and go: what stages 2 and 3 hold of gradients while
// backward makes them, and what stage 3 gathers. For cost.h.

#include "zero/cost/cost.h"
#include "zero/stages/prefetch.h"

namespace zero {

// Throws std::invalid_argument for an unknown stage.
bool is_sharded(int stage, const GradientPlan& plan);

// Of uses of rows, the buckets that are gathered: without persistent ones.
Uses bucket_uses(const Layout& layout, const std::vector<std::vector<int>>& uses);

// Elements of the buckets that backward has begun and not summed, at the most. Where every part has
// one bucket to itself: the largest bucket; with overlap_comm the largest two that are neighbours.
// Where gradients are not contiguous: those made, and the bucket they are copied to.
std::int64_t most_in_gradient_buckets(const GradientPlan& plan, const Layout& layout,
                                      const StepOptions& options, const Usage& usage);

// Elements of values that are gathered, at the most: a use's own and those ahead of it
// (prefetch.h). No more than stage3_max_live_parameters, unless a use alone needs more.
std::int64_t most_gathered(const Layout& layout, const StepOptions& options, const Usage& usage);

}  // namespace zero
