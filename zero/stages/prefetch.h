#pragma once
// The buckets that stage 3 gathers ahead of their uses. Pure functions with the same result on
// every rank.

#include <cstdint>
#include <vector>

#include "zero/states/layout.h"

namespace zero {

// The buckets of every use of a micro-batch, in order; a use has each of its buckets once.
using Uses = std::vector<std::vector<int>>;

// Returns the buckets that are gathered for uses of rows of the plan: those that are not
// persistent.
Uses bucket_uses(const Layout& layout, const std::vector<std::vector<int>>& uses);

// Returns for each use its buckets that stay gathered after it, because one of the next uses has
// them: those that begin before max_reuse_distance elements are used (DeepSpeed's
// stage3_max_reuse_distance). 0: no bucket stays. elements: by bucket.
Uses kept(const Uses& uses, const std::vector<std::int64_t>& elements,
          std::int64_t max_reuse_distance);

// Returns for each use the buckets that are gathered ahead after its own buckets. They are the
// buckets of the following uses, in order. The buckets ahead stay within prefetch_bucket_size
// elements, and all gathered buckets within max_live_parameters. The first bucket that does not fit
// ends the list. A bucket of the current use is not gathered ahead, because it is freed after the
// use. stay: the result of kept; empty: no bucket stays.
std::vector<std::vector<int>> prefetches(const Uses& uses,
                                         const std::vector<std::int64_t>& elements,
                                         std::int64_t prefetch_bucket_size,
                                         std::int64_t max_live_parameters, const Uses& stay = {});

// Returns the order in which buckets are gathered. starts: the result of prefetches.
std::vector<int> fetches(const Uses& uses, const std::vector<std::vector<int>>& starts,
                         const Uses& stay = {});

}  // namespace zero
