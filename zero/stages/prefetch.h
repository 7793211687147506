#pragma once
// The buckets that stage 3 gathers ahead, as data: which buckets start before which use. A pure
// function, the same on every rank.

#include <cstdint>
#include <vector>

#include "zero/states/layout.h"

namespace zero {

// The buckets of every use of a micro-batch, in order; a use has each of its buckets once.
using Uses = std::vector<std::vector<int>>;

// The buckets that are gathered for uses of rows of the plan: those that are not persistent.
Uses bucket_uses(const Layout& layout, const std::vector<std::vector<int>>& uses);

// For each use the buckets that are gathered ahead after its own: those of the uses that follow, in
// order, as long as the buckets ahead stay within prefetch_bucket_size elements and all gathered
// ones within max_live_parameters; the first that does not fit ends the list. A bucket of the
// present use is not gathered ahead, because it is freed after the use. elements: by bucket.
std::vector<std::vector<int>> prefetches(const Uses& uses,
                                         const std::vector<std::int64_t>& elements,
                                         std::int64_t prefetch_bucket_size,
                                         std::int64_t max_live_parameters);

// The order in which buckets are gathered then; starts: the result of prefetches.
std::vector<int> fetches(const Uses& uses, const std::vector<std::vector<int>>& starts);

}  // namespace zero
