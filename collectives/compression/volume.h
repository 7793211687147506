#pragma once
// The bytes that each rank sends in one run of a compressed all-reduce, in closed form. Independent
// of the code; the volume oracle compares the two.

#include <cstdint>
#include <map>
#include <string_view>

#include "machine/link/link.h"

namespace collectives {

// k: of top_k. most: of threshold, the largest number of elements that a rank sends. inner: the
// ranks of the first of two hops.
struct CompressedCall {
  std::int64_t ranks = 1, count = 0, k = 1, most = 0, inner = 1;
};

// Returns the bytes by label, without labels of zero bytes. Throws std::invalid_argument for an
// unknown name.
std::map<machine::TrafficLabel, std::uint64_t> bytes_sent(std::string_view compression,
                                                          const CompressedCall& call);
// Returns the bytes of a ring all-reduce of floats, averaged over ranks: 2 (N - 1) / N * 4 n.
double ring_bytes_sent(const CompressedCall& call);

}  // namespace collectives
