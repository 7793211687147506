#pragma once
// What stage 3 gathers ahead, as data: before which use which buckets start on their way. A pure
// function, the same on every rank.

#include <cstdint>
#include <vector>

namespace zero {

// The buckets of every use of a micro-batch, in order; a use has each of its buckets once.
using Uses = std::vector<std::vector<int>>;

// For each use the buckets that are gathered ahead once its own are on their way: those of the uses
// that follow, in order, as long as what is ahead stays within prefetch_bucket_size elements and
// all that is gathered within max_live_parameters; none goes before another that did not fit. What
// the present use has is not gathered ahead: it is freed after the use. elements: by bucket.
std::vector<std::vector<int>> prefetches(const Uses& uses,
                                         const std::vector<std::int64_t>& elements,
                                         std::int64_t prefetch_bucket_size,
                                         std::int64_t max_live_parameters);

// In what order buckets are gathered then; starts: as prefetches gives them.
std::vector<int> fetches(const Uses& uses, const std::vector<std::vector<int>>& starts);

}  // namespace zero
