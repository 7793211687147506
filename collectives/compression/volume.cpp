#include "collectives/compression/volume.h"

#include <algorithm>

#include "machine/base/reject.h"

namespace collectives {

using machine::Dtype;
using machine::Operation;
using machine::TrafficLabel;

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// The bytes of codes. Whole blocks of 4 bits fill whole bytes.
std::int64_t int8(std::int64_t count) { return count + 4 * ceil_div(count, 256); }
std::int64_t int4(std::int64_t count) { return 4 * ceil_div(count, 256) + ceil_div(count, 2); }

// The signs and a scale.
std::int64_t one_bit(std::int64_t count) { return count == 0 ? 0 : 4 + ceil_div(count, 8); }

}  // namespace

std::map<TrafficLabel, std::uint64_t> bytes_sent(std::string_view compression,
                                                 const CompressedCall& call) {
  const std::int64_t n = call.count, peers = call.ranks - 1;
  std::map<TrafficLabel, std::uint64_t> bytes;
  const auto put = [&](Operation operation, Dtype dtype, std::int64_t sent) {
    if (sent > 0) bytes[{operation, dtype}] += static_cast<std::uint64_t>(sent);
  };
  // A reduce-scatter of codes, between the `inner` ranks of a host and then between hosts, each of
  // which gets the code of its share; then a gather of the codes of sums. A hop between all ranks
  // is a plain all_to_all. One hop: inner is all ranks.
  const auto reduce_scatter = [&](std::int64_t code, std::int64_t inner) {
    const auto hop = [&](std::int64_t among, std::int64_t codes) {
      put(among == call.ranks ? Operation::all_to_all : Operation::all_to_all_v, Dtype::uint8,
          (among - 1) * codes * code);
    };
    hop(inner, call.ranks / inner);
    hop(call.ranks / inner, 1);
    put(Operation::all_gather, Dtype::uint8, peers * code);
  };
  const std::int64_t share = ceil_div(n, call.ranks);
  if (compression == "top_k") {
    put(Operation::all_gather, Dtype::uint32, peers * 8 * std::min(call.k, n));
  } else if (compression == "threshold") {
    if (n > 0) put(Operation::all_gather, Dtype::int32, peers * 4);
    put(Operation::all_gather, Dtype::uint32, peers * 4 * call.most);
  } else if (compression == "deviation") {
    if (n > 0) put(Operation::all_gather, Dtype::int32, peers * 4);
    put(Operation::all_gather, Dtype::uint32, peers * 8 * call.most);
  } else if (compression == "int8_block") {
    put(Operation::all_gather, Dtype::uint8, peers * int8(n));
  } else if (compression == "quantized_reduce_scatter") {
    reduce_scatter(int8(share), call.ranks);
  } else if (compression == "quantized_reduce_scatter_int4") {
    reduce_scatter(int4(share), call.ranks);
  } else if (compression == "two_hop_reduce_scatter") {
    reduce_scatter(int8(share), call.inner);
  } else if (compression == "two_hop_reduce_scatter_int4") {
    reduce_scatter(int4(share), call.inner);
  } else if (compression == "one_bit") {
    reduce_scatter(one_bit(share), call.ranks);
  } else if (compression == "half_wire" || compression == "bfloat16_wire") {
    reduce_scatter(2 * share, call.ranks);
  } else {
    machine::reject("no volume formula for compression '{}'", compression);
  }
  return bytes;
}

std::uint64_t bytes_held(std::string_view compression, const CompressedCall& call) {
  const std::int64_t n = call.count, ranks = call.ranks, share = ceil_div(n, ranks);
  const auto held = [&]() -> std::int64_t {
    const std::int64_t residual = 4 * n;
    // The rank's own part, and the parts of all ranks.
    const auto gathered = [&](std::int64_t part) { return residual + part * (1 + ranks); };
    // A code to and of each rank, the code of the sum, the sum, and its residual.
    const auto scattered = [&](std::int64_t code) {
      return residual + (2 * ranks + 1) * code + 4 * share + 4 * share;
    };
    // Of a selection: five words, and three counts for each block of 1024 elements and for all.
    const std::int64_t selection = 4 * (5 + 3 * (ceil_div(n, 1024) + 1));
    // The sum of squares, and the counts and lists of all ranks.
    const auto listed = [&](std::int64_t bytes) {
      return gathered(bytes * call.most) + selection + 8 + 4 * ranks;
    };
    if (compression == "top_k") return gathered(8 * std::min(call.k, n)) + selection;
    if (compression == "threshold") return listed(4);
    if (compression == "deviation") return listed(8);
    if (compression == "int8_block") return gathered(int8(n));
    if (compression == "quantized_reduce_scatter") return scattered(int8(share));
    if (compression == "quantized_reduce_scatter_int4") return scattered(int4(share));
    if (compression == "one_bit") return scattered(one_bit(share)) + 8;  // and a sum of squares
    if (compression == "half_wire" || compression == "bfloat16_wire") return scattered(2 * share);
    machine::reject("no memory formula for compression '{}'", compression);
  };
  return static_cast<std::uint64_t>(held());
}

double ring_bytes_sent(const CompressedCall& call) {
  const auto n = static_cast<double>(call.count), ranks = static_cast<double>(call.ranks);
  return 2 * (ranks - 1) / ranks * 4 * n;
}

}  // namespace collectives
