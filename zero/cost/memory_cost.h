#pragma once
// The parts of a step's memory that come and go: what stages 2 and 3 hold of gradients while
// backward makes them, and what stage 3 gathers. For cost.h.

#include "zero/cost/cost.h"
#include "zero/stages/prefetch.h"

namespace zero {

// The largest number of elements of buckets that backward has begun and not summed. If every part
// has one bucket: the largest bucket; with overlap_comm the largest two neighbours. If gradients
// are not contiguous: those made, and the bucket that they are copied to.
std::int64_t most_in_gradient_buckets(const GradientPlan& plan, const Layout& layout,
                                      const StepOptions& options, const Usage& usage);

// The largest number of elements of gathered values: a use's own and those ahead of it
// (prefetch.h). At most stage3_max_live_parameters, unless one use needs more.
std::int64_t most_gathered(const Layout& layout, const StepOptions& options, const Usage& usage);

}  // namespace zero
