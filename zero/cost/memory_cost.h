#pragma once
// The temporary memory of a step, for cost.h: the gradients that stages 2 and 3 hold during
// backward, and the values that stage 3 gathers.

#include "zero/cost/cost.h"
#include "zero/stages/prefetch.h"

namespace zero {

// Returns the peak bytes of buckets that backward has begun and that are not reduced, and of those
// on a wire of another dtype. If every part has one bucket, this is the largest bucket; with
// overlap_comm, the largest two neighbours, also of successive passes. If gradients are not
// contiguous, it counts the computed gradients and the bucket to which they are copied.
std::size_t most_in_gradient_buckets(const GradientPlan& plan, const Layout& layout,
                                     const StepOptions& options, const Passes& passes);

// Returns the peak number of elements of gathered values: those of a use and those gathered ahead
// (prefetch.h). At most stage3_max_live_parameters, unless one use needs more.
std::int64_t most_gathered(const Layout& layout, const StepOptions& options, const Passes& passes);

}  // namespace zero
