#pragma once
// A collective algorithm is data: a pure function (rank, ranks, pieces) -> Plan. The same plan is
// executed over any link (communicator.cpp), proved for every rank count by symbolic execution
// (prove.h) and summed for the volume oracle. Adding an algorithm never edits the executor.
//
// A buffer is cut into shares, one a rank (or one in all), and each share into pieces, so that a
// peer can work on one piece while the next is made. Chunk share * pieces + piece is the unit of
// steps:
//   all_reduce      input: a share a rank   output: a share a rank
//   reduce_scatter  input: a share a rank   output: the own share
//   all_gather      input: the own share    output: a share a rank

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine/link/link.h"

namespace collectives {

enum class Verb : unsigned char {
  send,            // source -> peer
  receive,         // peer -> target
  post,            // peer may write target from now until it is received there
  receive_reduce,  // target = source + what peer sends
  copy,            // target = source
  reduce,          // target = target + source
};

enum class Buffer : unsigned char { input, output, scratch };

// Chunks [first, first + count) of a buffer.
struct Slice {
  Buffer buffer = Buffer::input;
  int first = 0;
  int count = 1;
  auto operator<=>(const Slice&) const = default;
};

struct Step {
  Verb verb;
  int peer = -1;  // of the group; -1 for copy and reduce
  Slice source{};
  Slice target{};
  bool operator==(const Step&) const = default;
};

constexpr Step send(int peer, Slice source) { return {Verb::send, peer, source, {}}; }
constexpr Step receive(int peer, Slice target) { return {Verb::receive, peer, {}, target}; }
constexpr Step post(int peer, Slice target) { return {Verb::post, peer, {}, target}; }
constexpr Step receive_reduce(int peer, Slice source, Slice target) {
  return {Verb::receive_reduce, peer, source, target};
}
constexpr Step copy(Slice source, Slice target) { return {Verb::copy, -1, source, target}; }
constexpr Step reduce(Slice source, Slice target) { return {Verb::reduce, -1, source, target}; }
constexpr Slice input(int first, int count = 1) { return {Buffer::input, first, count}; }
constexpr Slice output(int first, int count = 1) { return {Buffer::output, first, count}; }
constexpr Slice scratch(int first, int count = 1) { return {Buffer::scratch, first, count}; }

struct Plan {
  int pieces = 1;
  int input_shares = 1, output_shares = 1;
  int scratch_shares = 0;  // each cut like this rank's own share
  std::vector<Step> steps;
};

// A channel holds this many messages that are sent and not received; a plan that needs more would
// wait for itself. The prover holds every plan to it.
inline constexpr int max_outstanding = 64;

// "send 1 input[0]; receive_reduce 1 input[1] -> output[1]; …": what a test prints.
std::string text(const Step& step);
std::string text(const Plan& plan);

struct ChunkRange {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
};
// The index-th of `parts` nearly equal parts of count elements: the first count % parts have one
// more.
constexpr ChunkRange part_of(std::int64_t count, int parts, int index) {
  const std::int64_t base = count / parts, rest = count % parts;
  const std::int64_t begin = base * index + (index < rest ? index : rest);
  return {begin, begin + base + (index < rest ? 1 : 0)};
}
// Elements of a chunk: cut into shares first, then each share into pieces.
constexpr ChunkRange chunk_range(std::int64_t count, int shares, int pieces, int index) {
  const ChunkRange share = part_of(count, shares, index / pieces);
  const ChunkRange piece = part_of(share.size(), pieces, index % pieces);
  return {share.begin + piece.begin, share.begin + piece.end};
}

// An algorithm as listed: `shardmark list`, axis values and the prover's tests all read
// algorithms().
struct Algorithm {
  machine::Operation operation;
  std::string_view name;    // as the literature names it
  std::string_view source;  // paper
  Plan (*plan)(int rank, int ranks, int pieces);
  // The paper's volume, for the oracle: elements that this rank sends when the whole (all_reduce)
  // or a share (the others) has `count` elements, and messages.
  std::int64_t (*sent_elements)(int rank, int ranks, std::int64_t count);
  std::int64_t (*sent_messages)(int ranks, int pieces);
};
const std::vector<Algorithm>& algorithms();
// Throws std::invalid_argument naming the nearest right name.
const Algorithm& find_algorithm(machine::Operation operation, std::string_view name);

}  // namespace collectives
