#pragma once
// A collective algorithm is data: a pure function (rank, ranks, pieces) -> Plan. The same plan is
// executed over any link (communicator.cpp), proved for every rank count by symbolic execution
// (prove.h) and summed for the volume oracle. Adding an algorithm never edits the executor.
//
// Buffers are cut into chunks of nearly equal size (chunk_range). all_reduce: input and output have
// ranks * pieces chunks. reduce_scatter: input the same, output `pieces`. all_gather: the reverse.
// Pieces cut each rank's share further, so that a peer can work on one while the next is made.

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
  receive_reduce,  // target = source + what peer sends
  copy,            // target = source
  reduce,          // target = target + source
};

enum class Buffer : unsigned char { input, output };

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
constexpr Step receive_reduce(int peer, Slice source, Slice target) {
  return {Verb::receive_reduce, peer, source, target};
}
constexpr Step copy(Slice source, Slice target) { return {Verb::copy, -1, source, target}; }
constexpr Step reduce(Slice source, Slice target) { return {Verb::reduce, -1, source, target}; }
constexpr Slice input(int first, int count = 1) { return {Buffer::input, first, count}; }
constexpr Slice output(int first, int count = 1) { return {Buffer::output, first, count}; }

struct Plan {
  int input_chunks = 1;
  int output_chunks = 1;
  std::vector<Step> steps;
};

// "send 1 input[0]; receive_reduce 1 input[1] -> output[1]; …": what a test prints.
std::string text(const Plan& plan);

struct ChunkRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};
// Element range of chunk `index` when `count` elements are cut into `chunks`: the first
// count % chunks have one more.
constexpr ChunkRange chunk_range(std::int64_t count, int chunks, int index) {
  const std::int64_t base = count / chunks, rest = count % chunks;
  const std::int64_t begin = base * index + (index < rest ? index : rest);
  return {begin, begin + base + (index < rest ? 1 : 0)};
}

// An algorithm as listed: `shardmark list`, axis values and the prover's tests all read
// algorithms().
struct Algorithm {
  machine::Operation operation;
  std::string_view name;    // as the literature names it
  std::string_view source;  // paper
  Plan (*plan)(int rank, int ranks, int pieces);
};
const std::vector<Algorithm>& algorithms();
// Throws std::invalid_argument naming the nearest right name.
const Algorithm& find_algorithm(machine::Operation operation, std::string_view name);

}  // namespace collectives
