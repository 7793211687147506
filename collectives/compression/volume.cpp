#include "collectives/compression/volume.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

namespace collectives {

using machine::Dtype;
using machine::Operation;
using machine::TrafficLabel;

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::map<TrafficLabel, std::uint64_t> bytes_sent(std::string_view compression,
                                                 const CompressedCall& call) {
  const std::int64_t n = call.count, peers = call.ranks - 1;
  std::map<TrafficLabel, std::uint64_t> bytes;
  const auto put = [&](Operation operation, Dtype dtype, std::int64_t sent) {
    if (sent > 0) bytes[{operation, dtype}] += static_cast<std::uint64_t>(sent);
  };
  // To each peer its share of a code, and to each peer the code of the sum of one's own share.
  const auto two_steps = [&](std::int64_t code) {
    put(Operation::all_to_all, Dtype::uint8, peers * code);
    put(Operation::all_gather, Dtype::uint8, peers * code);
  };
  // The sums of its shares to each rank of a host, then to each host the sum of its share. A hop
  // between all ranks is a plain all_to_all.
  const auto two_hops = [&](std::int64_t code) {
    const std::int64_t hosts = call.ranks / call.inner;
    const auto hop = [&](std::int64_t among, std::int64_t codes) {
      put(among == call.ranks ? Operation::all_to_all : Operation::all_to_all_v, Dtype::uint8,
          (among - 1) * codes * code);
    };
    hop(call.inner, hosts);
    hop(hosts, 1);
    put(Operation::all_gather, Dtype::uint8, peers * code);
  };
  const std::int64_t share = ceil_div(n, call.ranks);
  if (compression == "top_k") {
    put(Operation::all_gather, Dtype::uint32, peers * 8 * std::min(call.k, n));
  } else if (compression == "threshold") {
    if (n > 0) put(Operation::all_gather, Dtype::int32, peers * 4);
    put(Operation::all_gather, Dtype::uint32, peers * 4 * call.most);
  } else if (compression == "int8_block") {
    put(Operation::all_gather, Dtype::uint8, peers * (n + 4 * ceil_div(n, 256)));
  } else if (compression == "quantized_reduce_scatter") {
    two_steps(share + 4 * ceil_div(share, 256));
  } else if (compression == "quantized_reduce_scatter_int4") {
    two_steps(4 * ceil_div(share, 256) + ceil_div(share, 2));  // whole blocks fill whole bytes
  } else if (compression == "two_hop_reduce_scatter") {
    two_hops(share + 4 * ceil_div(share, 256));
  } else if (compression == "two_hop_reduce_scatter_int4") {
    two_hops(4 * ceil_div(share, 256) + ceil_div(share, 2));
  } else if (compression == "half_wire" || compression == "bfloat16_wire") {
    two_steps(2 * share);
  } else {
    throw std::invalid_argument(fmt::format("no volume known of compression '{}'", compression));
  }
  return bytes;
}

double ring_bytes_sent(const CompressedCall& call) {
  const auto n = static_cast<double>(call.count), ranks = static_cast<double>(call.ranks);
  return 2 * (ranks - 1) / ranks * 4 * n;
}

}  // namespace collectives
