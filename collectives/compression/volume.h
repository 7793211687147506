#pragma once
// The bytes that each rank sends in one run of a compressed all-reduce, and the bytes that it
// holds, in closed form. Independent of the code; the oracles of volume and memory compare the two.

#include <cstdint>
#include <map>
#include <string_view>

#include "machine/link/link.h"

namespace collectives {

// k: of top_k. most: of threshold and deviation, the largest number of elements that a rank sends.
// inner: the ranks of the first of two hops.
struct CompressedCall {
  std::int64_t ranks = 1, count = 0, k = 1, most = 0, inner = 1;
};

// Returns the bytes by label, without labels of zero bytes. Throws std::invalid_argument for an
// unknown name.
std::map<machine::TrafficLabel, std::uint64_t> bytes_sent(std::string_view compression,
                                                          const CompressedCall& call);
// Returns the bytes of the residuals, the codes and the sums, which are held between runs. most: of
// all runs so far. Throws std::invalid_argument for an unknown name and two hops. Without staging,
// plans' scratch and a host's temporary lists.
std::uint64_t bytes_held(std::string_view compression, const CompressedCall& call);
// Returns the bytes of a ring all-reduce of floats, averaged over ranks: 2 (N - 1) / N * 4 n.
double ring_bytes_sent(const CompressedCall& call);

}  // namespace collectives
