#pragma once
// What a compressed all-reduce puts on the wire, in closed form: bytes that each rank sends in one
// run. Independent of the code; the volume oracle compares the two.

#include <cstdint>
#include <map>
#include <string_view>

#include "machine/link/link.h"

namespace collectives {

// k: of top_k. most: of threshold, the largest number of elements that a rank sends. inner: of two
// hops, the ranks of the first.
struct CompressedCall {
  std::int64_t ranks = 1, count = 0, k = 1, most = 0, inner = 1;
};

// By label; labels of no bytes are left out. Throws std::invalid_argument for an unknown name.
std::map<machine::TrafficLabel, std::uint64_t> bytes_sent(std::string_view compression,
                                                          const CompressedCall& call);
// Of a ring all-reduce of floats, on the average of ranks: 2 (N - 1) / N * 4 n.
double ring_bytes_sent(const CompressedCall& call);

}  // namespace collectives
