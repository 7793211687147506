#pragma once
// The memory that the ranks of a communicator share: which operation each rank's stream has
// reached, and where its data are. Receivers read the data from the file of the sender's
// allocation.

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "machine/base/futex.h"

namespace machine::virtual_gpu::nccl {

inline constexpr int most_ranks = 64;
inline constexpr std::uint32_t most_parts = 4096;  // calls of one group

enum class Kind : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};

// How a collective moves its data. count: elements of a share if it has several, else of all.
struct Shape {
  const char* call;
  bool from_root, to_root;  // only the root gives, only the root takes
  bool of_own_share;        // an input has a share for each rank
  bool joined;              // an output has a share of each rank
  bool reduces;
};
const Shape& shape(Kind kind);
constexpr bool is_collective(Kind kind) { return kind < Kind::send; }

// The arguments that the ranks of an operation must agree on.
struct Call {
  Kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or root
  std::uint64_t count;
  bool operator==(const Call&) const = default;
  bool gives(int rank) const { return !shape(kind).from_root || rank == peer; }
  bool takes(int rank) const { return !shape(kind).to_root || rank == peer; }
};
std::string text_of(const Call& call);

// A call of a group, as its peers see it.
struct Part {
  Call call;
  std::uint64_t number;  // among the collectives, or among the messages from or to the peer
  std::uint64_t offset;  // of the input, in `file` of the rank's process
  int file;
  std::atomic<bool> has_read;        // this rank has read its inputs
  std::atomic<std::uint64_t> taken;  // bits of the ranks that have read this input
};

enum class State : std::uint32_t { absent, joining, joined, finalized, aborted, failed };

struct Rank {
  std::atomic<State> state;
  int process, device;
  std::uint32_t host;
  // Operations are numbered from 1. `reached` is the one whose parts stand below, or 0. A peer that
  // waits for this rank sets `requested`.
  Word reached, done, requested;
  // The last two calls of ncclCommSplit, by parity. The leader of a color adds the new segment.
  struct Split {
    int color, key;
    ncclUniqueId id;
  } splits[2];
  Word split, split_led;
  std::uint32_t count;
  Part parts[most_parts];
};

struct Segment {
  std::uint64_t nonce;
  Word bell;           // rung after every change
  Word ranks, joined;  // all of them, those that have joined
  Rank all[most_ranks];
  void ring() {
    ++bell;
    wake(bell);
  }
};

// Makes a segment that this process owns until close_segment.
bool make_segment(ncclUniqueId& id);
void close_segment(const ncclUniqueId& id);  // of another process: nothing
// Returns null if the id is invalid or its process has ended.
std::shared_ptr<Segment> open_segment(const ncclUniqueId& id);

// Reads from a file of a process. Returns false if the process has ended.
bool read_file(int process, int file, std::uint64_t offset, void* to, std::size_t bytes);
bool has_ended(int process);

}  // namespace machine::virtual_gpu::nccl
