#pragma once
// A collective algorithm is data: a pure function Call -> Plan. The same plan is executed over any
// link (communicator.cpp), proved for every rank count by symbolic execution (prove.h) and summed
// for the volume oracle. A new algorithm does not change the executor.
//
// The whole buffer of a call is split into shares, and each share into pieces. So a peer can work
// on one piece while the next is computed. Chunk share * pieces + piece is the unit of steps. If an
// operation deals in parts of ranks (all_gather, reduce_scatter, gather, scatter, all_to_all),
// share i belongs to rank i and all shares are equal. For other operations a plan can split the
// whole in any way. A rank's buffer holds the whole or its own share (then its chunks are 0 …
// pieces - 1); see extents(). all_to_all_v has the plans of all_to_all, which do not depend on the
// length of a share. Share i of the input goes to rank i, and share i of the output comes from rank
// i (Call::traffic).

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "machine/link/link.h"

namespace collectives {

class TrafficMatrix;

enum class Verb : unsigned char {
  send,            // source -> peer
  receive,         // peer -> target
  post,            // peer may write target from now until it is received there
  receive_reduce,  // target = source + the peer's data
  copy,            // target = source
  reduce,          // target = target + source
};

enum class Buffer : unsigned char { input, output, scratch };

// Chunks [first, first + count) of a buffer. Scratch consists of bays, each as long as the longest
// chunk. In scratch `first` is a bay, and the slice has the lengths of chunks [like, like + count)
// of the whole. A run of several chunks is read only as the run that was written. If all chunks are
// equally long (shares of ranks in one piece), any consecutive bays are a run.
struct Slice {
  Buffer buffer = Buffer::input;
  int first = 0;
  int count = 1;
  int like = 0;
  auto operator<=>(const Slice&) const = default;
};

struct Step {
  Verb verb;
  int peer = -1;  // of the group; -1 for copy and reduce
  Slice source{};
  Slice target{};
  bool pushes = false;  // of a send: writes to the place that the peer has posted, if it has
  bool operator==(const Step&) const = default;
};

constexpr Step send(int peer, Slice source) { return {Verb::send, peer, source, {}}; }
constexpr Step push(int peer, Slice source) { return {Verb::send, peer, source, {}, true}; }
constexpr Step receive(int peer, Slice target) { return {Verb::receive, peer, {}, target}; }
constexpr Step post(int peer, Slice target) { return {Verb::post, peer, {}, target}; }
constexpr Step receive_reduce(int peer, Slice source, Slice target) {
  return {Verb::receive_reduce, peer, source, target};
}
constexpr Step copy(Slice source, Slice target) { return {Verb::copy, -1, source, target}; }
constexpr Step reduce(Slice source, Slice target) { return {Verb::reduce, -1, source, target}; }
constexpr Slice input(int first, int count = 1) { return {Buffer::input, first, count}; }
constexpr Slice output(int first, int count = 1) { return {Buffer::output, first, count}; }
constexpr Slice scratch(int bay, int like, int count = 1) {
  return {Buffer::scratch, bay, count, like};
}

// The rank that runs a plan, and how its data may be split.
struct Call {
  int rank = 0;
  int ranks = 1;
  int pieces = 1;  // requested per share; a plan may choose another number, equal on all ranks
  int root = 0;    // of broadcast, reduce, gather, scatter
  int inner = 1;   // ranks [k * inner, (k + 1) * inner) are near each other; divides ranks
  const TrafficMatrix* traffic = nullptr;  // of all_to_all_v; plans do not read it
  bool in_place = false;                   // this rank's input and output are the same memory
};

struct Plan {
  int pieces = 1;
  int shares = 1;
  int bays = 0;  // of scratch
  std::vector<Step> steps = {};
  void add(const Step& step) { steps.push_back(step); }
};
// Returns the plan of a single rank.
inline Plan copy_of_input(int pieces) {
  return {pieces, 1, 0, {copy(input(0, pieces), output(0, pieces))}};
}

// The contents of a rank's buffer.
enum class Extent : unsigned char { none, own_share, whole };
struct Extents {
  Extent input, output;
};
Extents extents(machine::Operation operation, const Call& call);
bool may_be_in_place(machine::Operation operation);
bool reduces(machine::Operation operation);   // all_reduce, reduce_scatter, reduce
bool has_root(machine::Operation operation);  // broadcast, reduce, gather, scatter
// Returns whether shares are ranks' parts, each of the call's count (not for all_to_all_v).
bool deals_in_shares(machine::Operation operation);

// A channel holds this many messages that are sent and not received. A plan that needs more would
// deadlock. The prover checks every plan for it.
inline constexpr int max_outstanding = 64;

// "send 1 input[0]; receive_reduce 1 input[1] -> output[1]; …", for tests.
std::string text(const Step& step);
std::string text(const Plan& plan);

struct ChunkRange {
  std::int64_t begin = 0, end = 0;
  bool operator==(const ChunkRange&) const = default;
  constexpr std::int64_t size() const { return end - begin; }
};
// Returns number `index` of `parts` nearly equal parts of count elements. The first count % parts
// parts have one more element.
constexpr ChunkRange part_of(std::int64_t count, int parts, int index) {
  const std::int64_t base = count / parts, rest = count % parts;
  const std::int64_t begin = base * index + (index < rest ? index : rest);
  return {begin, begin + base + (index < rest ? 1 : 0)};
}

// Returns the elements of `number` consecutive parts.
constexpr std::int64_t size_of_parts(std::int64_t count, int parts, int first, int number) {
  return part_of(count, parts, first + number - 1).end - part_of(count, parts, first).begin;
}

// Elements and messages that a rank sends and receives.
struct Volume {
  std::int64_t sent = 0, messages_sent = 0, received = 0, messages_received = 0;
  bool operator==(const Volume&) const = default;
  constexpr Volume& operator+=(const Volume& other) {
    sent += other.sent;
    messages_sent += other.messages_sent;
    received += other.received;
    messages_received += other.messages_received;
    return *this;
  }
  // Returns the volume with sending and receiving exchanged.
  constexpr Volume reversed() const { return {received, messages_received, sent, messages_sent}; }
};
// Returns the volume of a rank that receives as much as it sends.
constexpr Volume both_ways(std::int64_t elements, std::int64_t messages) {
  return {elements, messages, elements, messages};
}

// An algorithm as listed: `shardmark list`, axis values and the prover's tests all read
// algorithms().
struct Algorithm {
  machine::Operation operation;
  std::string_view name;    // as the literature names it
  std::string_view source;  // paper
  Plan (*plan)(const Call& call);
  // The paper's volume, for the oracle; count: elements of the whole buffer or of a share
  // (deals_in_shares); for all_to_all_v TrafficMatrix::busiest(). call.pieces: those of the plan.
  Volume (*volume)(const Call& call, std::int64_t count);
  // The maximum number of bays of the plan, for the memory oracle.
  int (*bays)(const Call& call) = [](const Call&) { return 0; };
  // All of a result's chunks are summed in the same order, so a value's bits do not depend on its
  // place in a buffer.
  bool one_order = true;
  // Returns why the algorithm does not support this call ("needs a power of two, not 6"), or empty.
  std::string (*refuses)(const Call& call) = [](const Call&) { return std::string(); };
};
const std::vector<Algorithm>& algorithms();
// Returns whether the algorithm's plans depend on Call::inner.
bool reads_inner(const Algorithm& algorithm);
// Throws std::invalid_argument that names the nearest valid name.
const Algorithm& find_algorithm(machine::Operation operation, std::string_view name);

}  // namespace collectives
